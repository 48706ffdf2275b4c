"""The options of `gemmill explain` for a quantisation op's call."""

from gemmill.questions import Asked, number, size, switch, word

TITLE = "Quantisation"
QUESTIONS = (
    size("m", "Rows of the input"),
    word("dtype", "Of the input (bf16)", "bf16", "f16", "f32"),
    word("out", "Of the codes", "e4m3", "s8"),
    word("azp", "Of the codes of an op that gives them", "none", "tensor", "token", default="none"),
    Asked(name="hidden", flags="--hidden", least=0, is_size=True, help="Columns of the codes"),
    number("group", "Elements that share a scale"),
    word("activation", "act_and_mul ops: silu, gelu or gelu_tanh"),
    switch("ue8m0", "Scales are powers of two"),
    switch("m_major", "Scales of groups lie M-major", "--scales-m-major"),
)
