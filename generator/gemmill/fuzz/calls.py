"""Which call an op, a seed and an index make: a legal one, or one that is then broken."""

from gemmill.numerics.call import LegalCall, Limits
from gemmill.numerics.cases import cases_of_op
from gemmill.numerics.draw import Draw

BROKEN = 0.2
"""Of calls."""


def draw_call(name: str, seed: int, index: int, limits: Limits) -> tuple[LegalCall, Draw | None]:
    """A legal call and, where it is to be broken, what its breakage is drawn from."""
    draw = Draw(name, seed, index)
    is_broken = draw.chance(BROKEN)
    call = cases_of_op(name).drawn(name, draw, limits)
    return call, draw if is_broken else None
