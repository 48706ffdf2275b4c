"""What `gemmill explain` can be told of a block-scaled GEMM's call."""

from gemmill.questions import Asked

TITLE = "Block-scaled GEMMs"
QUESTIONS = (
    Asked(name="m", flags="-m", least=0, required=True, is_size=True, help="Rows of a and out"),
    Asked(name="n", flags="-n", least=0, is_size=True, help="Rows of the weights, columns of out"),
    Asked(name="k", flags="-k", least=0, is_size=True, help="Columns of a and of the weights"),
    Asked(name="out", flags="--out", kind=str, choices=("bf16", "f16"), help="Dtype of out and bias (bf16)"),
    Asked(name="bias", flags="--bias", kind=bool, default=False, help="Give a bias"),
    Asked(
        name="format",
        flags="--format",
        kind=str,
        choices=("nvfp4", "mxfp4", "mxfp6", "mxfp8"),
        help="Of the weights of an op that is told (nvfp4)",
    ),
    Asked(
        name="prepacked",
        flags="--prepacked/--checkpoint",
        kind=bool,
        default=True,
        help="Weights packed for a kernel, or in a checkpoint's order",
    ),
)

MEASURED = dict.fromkeys(
    (
        "nvfp4_bf16",
        "mxfp4_bf16",
        "mxfp6_bf16",
        "mxfp8_bf16",
        "mxfp4_e4m3",
        "nvfp4_e4m3",
        "nvfp4",
        "mxfp4",
        "mxfp8",
        "mxfp8_mxfp6",
        "mxfp8_mxfp4",
    ),
    ("m", "n", "k"),
)
"""The names of classes of calls that `sweep.py` measures, with their sizes."""
