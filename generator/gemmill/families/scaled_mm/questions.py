"""What `gemmill explain` can be told of a GEMM's call."""

from gemmill.questions import Asked

TITLE = "Scaled GEMMs"
QUESTIONS = (
    Asked(name="m", flags="-m", least=0, required=True, is_size=True, help="Rows of a and out"),
    Asked(name="n", flags="-n", least=0, is_size=True, help="Columns of b and out"),
    Asked(name="k", flags="-k", least=0, is_size=True, help="Columns of a, rows of b"),
    Asked(
        name="dtype", flags="--dtype", kind=str, choices=("e4m3", "s8", "bf16", "f16"), help="Dtype of a and b (e4m3)"
    ),
    Asked(
        name="out",
        flags="--out",
        kind=str,
        choices=("bf16", "f16"),
        help="Dtype of out and bias (bf16; f16 of f16 operands)",
    ),
    Asked(
        name="per_token",
        flags="--per-token/--per-tensor",
        kind=bool,
        default=True,
        help="A scale for each row of a, or one",
    ),
    Asked(
        name="per_channel",
        flags="--per-channel/--one-b-scale",
        kind=bool,
        default=True,
        help="A scale for each column of b, or one",
    ),
    Asked(name="group", flags="--group", help="Elements along K that share a scale, of e4m3 and s8"),
    Asked(
        name="b_scales",
        flags="--b-scales",
        kind=str,
        choices=("blocks", "rows"),
        help="With --group: of b, in blocks of as many columns, or each column its own (blocks)",
    ),
    Asked(
        name="m_major",
        flags="--scales-m-major",
        kind=bool,
        default=False,
        help="With --group, scales of a lie M-major",
    ),
    Asked(name="bias", flags="--bias", kind=bool, default=False, help="Give a bias"),
    Asked(
        name="azp",
        flags="--azp",
        kind=str,
        choices=("none", "tensor", "token"),
        default="none",
        help="Zero points of a, for cutlass_scaled_mm_azp",
    ),
    Asked(name="lda", flags="--lda", least=0, help="Row stride of a in elements; by default K"),
    Asked(name="ldb", flags="--ldb", least=0, help="Column stride of b in elements; by default K"),
    Asked(name="ldd", flags="--ldd", least=0, help="Row stride of out in elements; by default N"),
)

MEASURED = dict.fromkeys(
    ("fp8", "int8", "int8_azp", "fp8_groups", "fp8_groups_32", "bf16"),
    ("m", "n", "k"),
)
"""The names of classes of calls that `sweep.py` measures, with their sizes."""
