"""Where codes times a power of two are exact in the type that a tensor core multiplies."""

import math
from functools import cache

from gemmill.vocab.float_type import FloatType

_WIDEST = 300
"""No type here has a number beyond 2^300 times another."""


@cache
def exact_shifts(code: FloatType, operand: FloatType, *, normal: bool = False) -> range:
    """All s for which each number of `code`, times 2^s, is a number of `operand`. With `normal` it is zero or a normal
    number.

    The range is empty where there is none. For E2M1 in e4m3 it is -8 to 6, and for normal numbers -5 to 6.
    """
    numbers = {abs(value) for value in code.values if math.isfinite(value)}
    exact = [
        shift
        for shift in range(-_WIDEST, _WIDEST)
        if all(operand.holds(math.ldexp(number, shift), normal=normal) for number in numbers)
    ]
    return range(exact[0], exact[-1] + 1) if exact else range(0)
