"""What `gemmill explain` can be told of a call of fused experts."""

from gemmill.questions import Asked

TITLE = "Fused experts"
QUESTIONS = (
    Asked(name="m", flags="-m", least=0, required=True, is_size=True, help="Tokens"),
    Asked(name="n", flags="-n", least=0, is_size=True, help="Gates and ups together"),
    Asked(name="k", flags="-k", least=0, is_size=True, help="Columns of x and of the result"),
    Asked(name="experts", flags="--experts", least=1, help="Experts whose weights are here (8)"),
    Asked(name="topk", flags="--topk", least=1, help="Experts of a token (2)"),
    Asked(name="group", flags="--group", help="128 or 32, or none for scales of rows"),
    Asked(name="dtype", flags="--dtype", kind=str, choices=("e4m3", "bf16", "f16"), help="Of weights (e4m3)"),
    Asked(
        name="format",
        flags="--format",
        kind=str,
        choices=("nvfp4", "mxfp4", "nvfp4_2to4", "nvfp4_2to4_8", "mxfp4_e4m3", "nvfp4_e4m3"),
        help="Of packed weights of experts (nvfp4)",
    ),
    Asked(name="out", flags="--out", kind=str, choices=("bf16", "f16"), help="Dtype of x and out (bf16)"),
)
