"""Results of a GEMM held against the reference in one step."""

from torch import Tensor

from gemmill.families.scaled_mm.bounds import exact_scaled_mm, tolerance
from gemmill.families.scaled_mm.reference import groups_of, scaled_mm
from gemmill.numerics.comparison import Comparison, Wanted
from gemmill.vocab import Accumulation


def check_scaled_mm(
    actual: Tensor,
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    accumulation: Accumulation,
    bias: Tensor | None = None,
) -> Comparison:
    """s8 to the last bit, e4m3 and scales in groups within `tolerance`."""
    operands = a, b, a_scales, b_scales
    rounded = scaled_mm(*operands, actual.dtype, bias)
    if accumulation is Accumulation.EXACT and groups_of(*operands) is None:
        return Wanted(rounded=rounded).compare(actual)
    bound = tolerance(*operands, actual.dtype, accumulation, bias)
    return Wanted(rounded=rounded, exact=exact_scaled_mm(*operands, bias), bound=bound).compare(actual)
