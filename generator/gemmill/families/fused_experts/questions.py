"""The options of `gemmill explain` for a call of fused experts."""

from gemmill.questions import number, size, word

TITLE = "Fused experts"
QUESTIONS = (
    size("m", "Tokens"),
    size("n", "Gates and ups together"),
    size("k", "Columns of x and of the result"),
    number("experts", "Experts whose weights are here (8)", least=1),
    number("topk", "Experts of a token (2)", least=1),
    number("group", "128 or 32, or none for scales of rows"),
    word("dtype", "Of weights (e4m3)", "e4m3", "bf16", "f16"),
    word(
        "format",
        "Of packed weights of experts (nvfp4)",
        "nvfp4",
        "mxfp4",
        "nvfp4_2to4",
        "nvfp4_2to4_8",
        "mxfp4_e4m3",
        "nvfp4_e4m3",
    ),
    word("out", "Dtype of x and out (bf16)", "bf16", "f16"),
)
