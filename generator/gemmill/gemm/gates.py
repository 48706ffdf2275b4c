"""Conditions on activations of gates, and on their numbers: `activation`, its index, `alpha`, `limit` and `beta`."""

from gemmill.family import Require, Step, When, any_of
from gemmill.vocab.activation import Activation

WORDS = tuple(activation.spelled for activation in Activation)
KNOWN = Require(f"activation in {WORDS}", f"activation is {{activation!r}}, expected {any_of(list(map(repr, WORDS)))}")
NUMBERS: tuple[Step, ...] = (
    When(
        f"activation_index < {list(Activation).index(Activation.SWIGLU)}",
        (
            Require(
                "alpha == 1 and limit == 1e999 and beta == 0",
                "alpha, limit, beta = {alpha}, {limit}, {beta} with activation {activation!r}: only 'swiglu' has them, else they "
                "are 1, inf, 0",
            ),
        ),
    ),
    Require("limit > 0", "limit is {limit}, expected a number above 0, or inf for none"),
)
