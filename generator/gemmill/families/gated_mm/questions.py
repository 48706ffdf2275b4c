"""What `gemmill explain` can be told of a gated GEMM's call."""

from gemmill.questions import Asked

TITLE = "GEMM + SwiGLU"
QUESTIONS = (
    Asked(name="m", flags="-m", least=0, required=True, is_size=True, help="Rows of a and out"),
    Asked(name="n", flags="-n", least=0, is_size=True, help="Gates and ups together"),
    Asked(name="k", flags="-k", least=0, is_size=True, help="Columns of a and of the weights"),
    Asked(name="experts", flags="--experts", least=1, help="Experts that rows are dealt to (8)"),
    Asked(
        name="dtype",
        flags="--dtype",
        kind=str,
        choices=("e4m3", "s8"),
        help="Of a and of the weights (e4m3)",
    ),
    Asked(
        name="activation",
        flags="--activation",
        kind=str,
        help="Of the gates (silu)",
    ),
    Asked(name="out", flags="--out", kind=str, choices=("bf16", "e4m3"), help="Dtype of out (bf16)"),
    Asked(name="group", flags="--group", help="Results that share a scale"),
    Asked(
        name="in_groups",
        flags="--in-groups",
        kind=bool,
        default=False,
        help="Scales of operands are in groups of 128 along K",
    ),
    Asked(name="indexed", flags="--indexed", kind=bool, default=False, help="Gather rows of a by token_ids"),
)
