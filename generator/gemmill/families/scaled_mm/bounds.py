"""How far a right kernel may be from the exact result, element by element, from the arithmetic of the hardware.

s8: nothing is lost in the sum and the reference repeats the epilogue's roundings, so the tolerance is zero.

e4m3 on Hopper: a tensor-core instruction adds 32 products and the running sum as fixed-point numbers that share the
largest one's exponent and keep 13 bits below it (FP22: 1 sign, 8 exponent and 13 fraction bits). What lies below is
cut off. Each of the 33 terms so loses less than 2^-13 of the largest, and the result is within that form. So an
instruction adds at most 33 x 2^-13 x max(|sum before it|, sum of the |products| of its 32) to the error. `fast` leaves
the sum in that form over the whole of K. `promoted` adds it to a float32 register every 128 along K (2^-24 of the
register each time) and starts from zero. The bound follows these steps along K with the true partial sums, instead of
assuming the worst partial sum for all of them, which would hide every fault. Over the whole of K it is wide all the same:
`gemmill.numerics.exact` has operands that need none.

bf16 and f16 on Hopper: see `gemmill.arithmetic`.

With scales in groups along K, at most one group stays in the tensor core, whatever the accumulation is called. Its sum is
multiplied by both scales and added to a float32 register. That is at most three roundings of what is added (the scales' product,
the product with the sum, and one more where the order is another) and one of the register. In whatever order the groups
are added, no partial sum is beyond the sum of their magnitudes. Slices of K that are added at the end cost a rounding
each, and there are fewer of them than groups. A group of s8 sums to 2^21 at most, which float32 holds.

After the sum: its rounding to float32, b's scale, a's scale and the bias are four roundings of 2^-24. Storing costs half a unit
in the last place of the output's type.
"""

import torch
from torch import Tensor

from gemmill.arithmetic import (
    FLOAT32_UNIT,
    OF_16_BITS,
    OF_E4M3,
    half_unit_in_last_place,
    lost_in_sum,
    scaled_error,
)
from gemmill.families.scaled_mm.reference import check_scales, each_group, exact_group_scaled_mm, groups_of
from gemmill.vocab import Accumulation, ScaleGroups

TENSOR_CORES = {
    torch.float8_e4m3fn: OF_E4M3,
    torch.bfloat16: OF_16_BITS,
    torch.float16: OF_16_BITS,
}
PROMOTION_K = 128
GROUP_ROUNDINGS = 3
"""Of one group's part of the sum, before it is added."""


def exact_scaled_mm(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, bias: Tensor | None = None) -> Tensor:
    """The result before any rounding, float64 [M, N]: what `tolerance` is a distance from. Arguments as in scaled_mm."""
    if (groups := groups_of(a, b, a_scales, b_scales)) is not None:
        return exact_group_scaled_mm(a, b, a_scales, b_scales, groups, bias)
    check_scales(a, b, a_scales, b_scales)
    result = _scales(a_scales, b_scales) * (a.to(torch.float64) @ b.to(torch.float64))
    return result if bias is None else result + bias.reshape(1, -1).to(torch.float64)


def _scales(a_scales: Tensor, b_scales: Tensor) -> Tensor:
    return a_scales.reshape(-1, 1).to(torch.float64) * b_scales.reshape(1, -1).to(torch.float64)


def accumulation_error(a: Tensor, b: Tensor, accumulation: Accumulation) -> Tensor:
    """Bound on the error of the unscaled sum a b, float64 [M, N]; NaN where the sum is NaN."""
    if accumulation is Accumulation.EXACT:
        return torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    promoted_k = PROMOTION_K if accumulation is Accumulation.PROMOTED else None
    return lost_in_sum(a.to(torch.float64), b.to(torch.float64), TENSOR_CORES[a.dtype], promoted_k=promoted_k)


def tolerance(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    out_dtype: torch.dtype,
    accumulation: Accumulation,
    bias: Tensor | None = None,
    sum_error: Tensor | None = None,
) -> Tensor:
    """Largest |kernel - exact_scaled_mm| of a right kernel, float64 [M, N]. Arguments as in scaled_mm.

    `sum_error` is accumulation_error's result where the caller has it already. Scales in groups need none, and set the
    accumulation themselves; s8 is bounded with them too.
    """
    if (groups := groups_of(a, b, a_scales, b_scales)) is not None:
        return _group_tolerance(a, b, a_scales, b_scales, groups, out_dtype, bias)
    if sum_error is None:
        sum_error = accumulation_error(a, b, accumulation)
    return scaled_error(a.to(torch.float64) @ b.to(torch.float64), sum_error, a_scales, b_scales, out_dtype, bias)


def _group_tolerance(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    groups: ScaleGroups,
    out_dtype: torch.dtype,
    bias: Tensor | None,
) -> Tensor:
    exact = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    error, magnitude, additions = exact.clone(), exact.clone(), 1
    core = TENSOR_CORES.get(a.dtype)
    for a_group, b_group, scale in each_group(a, b, a_scales, b_scales, groups):
        lost = torch.zeros_like(error) if core is None else lost_in_sum(a_group, b_group, core)
        acc, scale_size = a_group @ b_group, scale.abs()
        term = scale_size * (acc.abs() + lost)
        error += scale_size * lost + GROUP_ROUNDINGS * FLOAT32_UNIT * term
        magnitude += term
        exact += scale * acc
        additions += 2  # to the register, and as one of at most as many slices of K
    if bias is not None:
        exact += bias.reshape(1, -1).to(torch.float64)
        magnitude += bias.reshape(1, -1).to(torch.float64).abs()
    error += additions * FLOAT32_UNIT * magnitude
    return error + half_unit_in_last_place(exact.abs() + error, out_dtype)
