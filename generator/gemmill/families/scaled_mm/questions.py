"""The options of `gemmill explain` for a GEMM's call."""

from gemmill.questions import number, size, switch, word

TITLE = "Scaled GEMMs"
QUESTIONS = (
    size("m", "Rows of a and out"),
    size("n", "Columns of b and out"),
    size("k", "Columns of a, rows of b"),
    word("dtype", "Dtype of a and b (e4m3)", "e4m3", "s8", "bf16", "f16"),
    word("out", "Dtype of out and bias (bf16; f16 of f16 operands)", "bf16", "f16"),
    switch("per_token", "A scale for each row of a, or one", "--per-token/--per-tensor", default=True),
    switch("per_channel", "A scale for each column of b, or one", "--per-channel/--one-b-scale", default=True),
    number("group", "Elements along K that share a scale, of e4m3 and s8"),
    word(
        "b_scales",
        "With --group: of b, in blocks of as many columns, or each column its own (blocks)",
        "blocks",
        "rows",
    ),
    switch("m_major", "With --group, scales of a lie M-major", "--scales-m-major"),
    switch("bias", "Give a bias"),
    word("azp", "Zero points of a, for cutlass_scaled_mm_azp", "none", "tensor", "token", default="none"),
    number("lda", "Row stride of a in elements; by default K", least=0),
    number("ldb", "Column stride of b in elements; by default K", least=0),
    number("ldd", "Row stride of out in elements; by default N", least=0),
)

MEASURED = dict.fromkeys(
    ("fp8", "int8", "int8_azp", "fp8_groups", "fp8_groups_32", "bf16"),
    ("m", "n", "k"),
)
"""The names of classes of calls that `sweep.py` measures, with their sizes."""
