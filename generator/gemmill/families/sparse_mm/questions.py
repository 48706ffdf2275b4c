"""What `gemmill explain` can be told of a sparse GEMM's call."""

from gemmill.questions import Asked

TITLE = "2:4 sparse GEMMs"
QUESTIONS = (
    Asked(name="m", flags="-m", least=0, required=True, is_size=True, help="Rows of a and out"),
    Asked(name="n", flags="-n", least=0, is_size=True, help="Columns of b and out"),
    Asked(name="k", flags="-k", least=0, is_size=True, help="Columns of a and of the weights"),
    Asked(
        name="dtype",
        flags="--dtype",
        kind=str,
        choices=("e4m3", "s8", "bf16", "f16"),
        help="Of a and of the weights (e4m3)",
    ),
    Asked(name="out", flags="--out", kind=str, choices=("bf16", "f16"), help="Dtype of out (bf16)"),
    Asked(name="bias", flags="--bias", kind=bool, default=False, help="Give a bias"),
    Asked(
        name="azp",
        flags="--azp",
        kind=str,
        choices=("none", "tensor", "token"),
        default="none",
        help="Zero points of a, for ops with azp in their name",
    ),
)
