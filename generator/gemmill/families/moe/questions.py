"""What `gemmill explain` can be told of a grouped GEMM's call."""

from gemmill.questions import Asked

TITLE = "Grouped GEMMs"
QUESTIONS = (
    Asked(name="m", flags="-m", least=0, required=True, is_size=True, help="All rows"),
    Asked(name="n", flags="-n", least=0, is_size=True, help="Rows of an expert's weights, columns of out"),
    Asked(name="k", flags="-k", least=0, is_size=True, help="Columns of a and of the weights"),
    Asked(name="experts", flags="--experts", least=1, help="Experts that rows are dealt to (8)"),
    Asked(name="group", flags="--group", help="128 or 32, or none for scales of channels"),
    Asked(
        name="b_scales",
        flags="--b-scales",
        kind=str,
        choices=("blocks", "rows"),
        help="With --group: of weights, in blocks of as many rows, or each row its own (blocks)",
    ),
    Asked(
        name="dtype",
        flags="--dtype",
        kind=str,
        choices=("e4m3", "s8", "bf16", "f16"),
        help="Of a and of the weights (e4m3)",
    ),
    Asked(
        name="format",
        flags="--format",
        kind=str,
        choices=("nvfp4", "mxfp4"),
        help="Of packed weights of a grouped GEMM (nvfp4)",
    ),
    Asked(name="out", flags="--out", kind=str, choices=("bf16", "f16"), help="Dtype of out (bf16)"),
    Asked(name="bias", flags="--bias", kind=bool, default=False, help="Give a bias"),
    Asked(name="indexed", flags="--indexed", kind=bool, default=False, help="Gather rows of a by token_ids"),
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
