"""Which call an op, a seed and an index make: a legal one, or one that is then broken."""

from gemmill.families.scaled_mm.ops import GEMM_OPS
from gemmill.fuzz.call import LegalCall, Limits
from gemmill.fuzz.draw import Draw
from gemmill.fuzz.gemm_calls import gemm_call
from gemmill.fuzz.quant_calls import quant_call
from gemmill.runtime.schemas import BY_NAME

BROKEN = 0.2
"""Of calls."""


def draw_call(name: str, seed: int, index: int, limits: Limits) -> tuple[LegalCall, Draw | None]:
    """A legal call and, where it is to be broken, what its breakage is drawn from."""
    draw = Draw(name, seed, index)
    is_broken, op = draw.chance(BROKEN), BY_NAME[name]
    call = gemm_call(op, draw, limits) if op in GEMM_OPS else quant_call(op, draw, limits)
    return call, draw if is_broken else None
