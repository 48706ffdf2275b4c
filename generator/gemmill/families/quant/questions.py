"""What `gemmill explain` can be told of a quantisation op's call."""

from gemmill.questions import Asked

TITLE = "Quantisation"
QUESTIONS = (
    Asked(name="m", flags="-m", least=0, required=True, is_size=True, help="Rows of the input"),
    Asked(
        name="dtype",
        flags="--dtype",
        kind=str,
        choices=("bf16", "f16", "f32"),
        help="Of the input (bf16)",
    ),
    Asked(name="out", flags="--out", kind=str, choices=("e4m3", "s8"), help="Of the codes"),
    Asked(
        name="azp",
        flags="--azp",
        kind=str,
        choices=("none", "tensor", "token"),
        default="none",
        help="Of the codes of an op that gives them",
    ),
    Asked(name="hidden", flags="--hidden", least=0, is_size=True, help="Columns of the codes"),
    Asked(name="group", flags="--group", help="Elements that share a scale"),
    Asked(name="activation", flags="--activation", kind=str, help="act_and_mul ops: silu, gelu or gelu_tanh"),
    Asked(
        name="ue8m0",
        flags="--ue8m0",
        kind=bool,
        default=False,
        help="Scales are powers of two",
    ),
    Asked(
        name="m_major",
        flags="--scales-m-major",
        kind=bool,
        default=False,
        help="Scales of groups lie M-major",
    ),
)
