"""The options of `gemmill explain` for a sparse GEMM's call."""

from gemmill.questions import size, switch, word

TITLE = "2:4 sparse GEMMs"
QUESTIONS = (
    size("m", "Rows of a and out"),
    size("n", "Columns of b and out"),
    size("k", "Columns of a and of the weights"),
    word("dtype", "Of a and of the weights (e4m3)", "e4m3", "s8", "bf16", "f16"),
    word("out", "Dtype of out (bf16)", "bf16", "f16"),
    switch("bias", "Give a bias"),
    word("azp", "Zero points of a, for ops with azp in their name", "none", "tensor", "token", default="none"),
)
