"""How far a right kernel may be from the exact result, element by element, from the arithmetic of the hardware.

s8: nothing is lost in the sum, and the reference repeats the epilogue's roundings. Floats: a sparse instruction of
Hopper's tensor core takes twice the elements along K of a dense one, and adds as many products. Those are of kept
values: 32 of e4m3, 16 of 16 bits. So it has the loss of a dense instruction (`gemmill.arithmetic`), over twice the span
along K. Promoted sums leave the tensor core every 128 along K.
"""

from dataclasses import replace

import torch
from torch import Tensor

from gemmill.arithmetic import OF_16_BITS, OF_E4M3, lost_in_sum, scaled_error
from gemmill.families.sparse_mm.reference import sums

PROMOTION_K = 128
SPARSE_CORES = {
    dtype: replace(core, instruction_k=2 * core.instruction_k)
    for dtype, core in (
        (torch.float8_e4m3fn, OF_E4M3),
        (torch.bfloat16, OF_16_BITS),
        (torch.float16, OF_16_BITS),
    )
}


def exact_mm(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, bias: Tensor | None = None) -> Tensor:
    """The result before any rounding, float64 [M, N]; b [K, N] with its zeros."""
    result = a_scales.reshape(-1, 1).double() * b_scales.reshape(1, -1).double() * sums(a, b)
    return result if bias is None else result + bias.reshape(1, -1).double()


def tolerance(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
    *,
    promoted: bool = False,
) -> Tensor:
    """The largest |kernel - exact_mm| of a right kernel, float64 [M, N]; arguments as in exact_mm."""
    total = sums(a, b)
    lost = torch.zeros_like(total)
    if a.dtype is not torch.int8:
        promoted_k = PROMOTION_K if promoted else None
        lost = lost_in_sum(a.double(), b.double(), SPARSE_CORES[a.dtype], promoted_k=promoted_k)
    return scaled_error(total, lost, a_scales, b_scales, out_dtype, bias)
