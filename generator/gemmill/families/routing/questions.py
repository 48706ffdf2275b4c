"""The options of `gemmill explain` for a router's call."""

from gemmill.questions import number, size, word

TITLE = "Routers"
QUESTIONS = (
    size("m", "Tokens"),
    size("n", "Experts"),
    size("k", "Columns of x"),
    number("topk", "Experts of a token (8)", least=1),
    word("dtype", "Of x and the weights (bf16)", "bf16", "f16"),
)
