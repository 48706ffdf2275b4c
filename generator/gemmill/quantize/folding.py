"""Where codes times a power of two are exact in the type that a tensor core multiplies."""

import math
from functools import cache

from gemmill.vocab.float_type import FloatType

_WIDEST = 300
"""No type here has a number beyond 2^300 times another."""


@cache
def exact_shifts(code: FloatType, operand: FloatType, *, normal: bool = False) -> range:
    """All s for which every number of `code`, times 2^s, is one of `operand`; with `normal`, zero or a normal one.

    Empty where there is none. E2M1 in e4m3: -8 to 6, of normal numbers -5 to 6.
    """
    numbers = {abs(value) for value in code.values if math.isfinite(value)}
    exact = [
        shift
        for shift in range(-_WIDEST, _WIDEST)
        if all(operand.holds(math.ldexp(number, shift), normal=normal) for number in numbers)
    ]
    return range(exact[0], exact[-1] + 1) if exact else range(0)
