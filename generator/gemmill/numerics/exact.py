"""Operands of which no right kernel loses a bit before it stores the result, so that there is no tolerance.

The bound on e4m3 sums (in the bounds of the scaled GEMMs) is the worst case and grows with every instruction. Beyond K
= 4096 a result that is 0.9 of the truth lies within it. So the tests compare results of these operands too, to the last
bit. Values are whole numbers, and so are all partial sums.

The e4m3 instruction keeps 13 bits below the exponent of the largest number that it adds. Whole numbers whose sum
stays below 2^14 lose nothing, and 16-bit operands keep 10 bits more. The magnitudes of an element's products sum to
less than 2^14, so that no order and no slicing of K leaves that range. For values of -2 to 2 that holds for K below
4096. From there on values are -1, 0 and 1, with so many zeros that 14500 products in the mean are not 0. Their number
varies by 120, and 2^14 is 15 times that away.

Scales are 1/4, 1/2 and 1. A result is a multiple of 1/16 below 2^14, which float32 holds, with a whole number below 2^8
as bias too. The kernel rounds it once, as it stores it.
"""

import math

import torch
from torch import Tensor

EXACT_BELOW = 2**14
"""Whole numbers that an e4m3 instruction adds without loss."""
_PRODUCTS = 14_500
"""Nonzero products of an element, in the mean."""
_LARGEST_SHARE = 2 / 3


def small_integers(rows: int, k: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """An operand [rows, k]: a, or b transposed."""
    device = generator.device
    if 4 * k < EXACT_BELOW:
        return (
            torch.randint(-2, 3, (rows, k), generator=generator, device=device, dtype=torch.int64)
            .to(torch.float32)
            .to(dtype)
        )
    share = min(_LARGEST_SHARE, math.sqrt(_PRODUCTS / k))  # of both operands, so of products its square
    drawn = torch.rand(rows, k, generator=generator, device=device, dtype=torch.float32)
    return ((drawn < share).to(torch.float32) - 2 * (drawn < share / 2)).to(dtype)


def powers_of_two(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Scales of 1/4, 1/2 and 1."""
    return torch.exp2(
        torch.randint(-2, 1, shape, generator=generator, device=generator.device, dtype=torch.int64).to(torch.float32)
    )
