"""The options of `gemmill explain` for a gated GEMM's call."""

from gemmill.questions import number, size, switch, word

TITLE = "GEMM + SwiGLU"
QUESTIONS = (
    size("m", "Rows of a and out"),
    size("n", "Gates and ups together"),
    size("k", "Columns of a and of the weights"),
    number("experts", "Experts that rows are dealt to (8)", least=1),
    word("dtype", "Of a and of the weights (e4m3)", "e4m3", "s8"),
    word("activation", "Of the gates (silu)"),
    word("out", "Dtype of out (bf16)", "bf16", "e4m3"),
    number("group", "Results that share a scale"),
    switch("in_groups", "Scales of operands are in groups along K: of 128, or of 32 with --group 32"),
    switch("indexed", "Gather rows of a by token_ids"),
)
