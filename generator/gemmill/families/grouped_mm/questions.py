"""The options of `gemmill explain` for a grouped GEMM's call."""

from gemmill.questions import number, size, switch, word

TITLE = "Grouped GEMMs"
QUESTIONS = (
    size("m", "All rows"),
    size("n", "Rows of an expert's weights, columns of out"),
    size("k", "Columns of a and of the weights"),
    number("experts", "Experts that rows are dealt to (8)", least=1),
    number("group", "128 or 32, or none for scales of channels"),
    word(
        "b_scales",
        "With --group: of weights, in blocks of as many rows, or each row its own (blocks)",
        "blocks",
        "rows",
    ),
    word("dtype", "Of a and of the weights (e4m3)", "e4m3", "s8", "bf16", "f16"),
    word("format", "Of packed weights of a grouped GEMM (nvfp4)", "nvfp4", "mxfp4"),
    word("out", "Dtype of out (bf16)", "bf16", "f16"),
    switch("bias", "Give a bias"),
    switch("indexed", "Gather rows of a by token_ids"),
)

MEASURED = dict.fromkeys(
    (
        "experts_fp8",
        "experts_fp8_groups",
        "experts_fp8_groups_32",
        "experts_int8",
        "experts_bf16",
        "experts_fp8_gathered",
        "experts_fp8_groups_gathered",
        "experts_nvfp4_bf16",
        "experts_mxfp4_bf16",
        "experts_mxfp4_fp8",
    ),
    ("m", "n", "k", "experts"),
)
"""The names of classes of calls that `sweep.py` measures, with their sizes."""
