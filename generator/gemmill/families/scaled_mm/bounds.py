"""How far a right kernel may be from the exact result, element by element, from the arithmetic of the hardware.

s8: nothing is lost in the sum and the reference repeats the epilogue's roundings, so the tolerance is zero.

e4m3 on Hopper: a tensor-core instruction adds 32 products and the running sum as fixed-point numbers that share the
largest one's exponent and keep 13 bits below it (FP22: 1 sign, 8 exponent and 13 fraction bits); what lies below is
cut off, towards zero. The largest errors on an H200 (2026-11-21, K = 272) are those of a simulation of this: 0.024 of a bound of
33 units an instruction, where 12 bits would give 0.05 and cutting off as in two's complement 0.09. A unit is the last
bit that is kept. A product loses what of it is below a unit: most often nothing, for it has 8 significant bits. The
running sum loses less than a unit. The largest of all is at most the |sum before it| with its
error, or the largest |a| times the largest |b| of the 32. Kernels that slice K begin anywhere with zero: the sum before it is at
most the distance to the lowest or highest of those before. `fast` leaves the sum in that form over the whole of K. `promoted` adds it
to a float32 register every 128 along K (2^-24 of the register each time) and starts from zero. So the bound follows the true
partial sums and products: the worst ones for all steps would hide every fault. Of K = 8192 it shows that all is 0.9 of the
truth, of K = 14336 that the last 128 products are missing, by some elements of a hundred. Beyond,
`gemmill.numerics.exact` has operands that need no bound.

bf16 and f16 on Hopper: products are exact, an instruction adds 16 of them and the running sum, aligned to the largest, with at
least 23 bits below its exponent kept and what lies below cut off (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of
NVIDIA tensor cores", PeerJ Computer Science 2021, and its successors for Hopper). So each of 17 terms loses less than 2^-23
of the largest. The result, cut off to float32, loses as much of itself, which is at most twice that: 19 x 2^-23 in all.

With scales in groups along K, at most one group stays in the tensor core, whatever the accumulation is called. Its sum is
multiplied by both scales and added to a float32 register: at most three roundings of what is added (the scales' product,
the product with the sum, and one more where the order is another) and one of the register. In whatever order the groups
are added, no partial sum is beyond the sum of their magnitudes; slices of K that are added at the end cost a rounding
each, and there are fewer of them than groups. A group of s8 sums to 2^21 at most, which float32 holds.

After the sum: its rounding to float32, b's scale, a's scale and the bias are four roundings of 2^-24, and storing
costs half a unit in the last place of the output's type.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.families.scaled_mm.reference import check_scales, each_group, exact_group_scaled_mm, groups_of
from gemmill.vocab import Accumulation, ScaleGroups


@dataclass(frozen=True, kw_only=True)
class TensorCore:
    """How sums of one type's products lose bits."""

    instruction_k: int
    """Products that one instruction adds to a sum."""
    unit: float
    """Of the largest that it adds, below which bits are cut off."""
    losses: int | None = None
    """Times that it loses less than a unit, where products have so many bits that any may; None where they are looked at."""


TENSOR_CORES = {
    torch.float8_e4m3fn: TensorCore(instruction_k=32, unit=2.0**-13),
    torch.bfloat16: TensorCore(instruction_k=16, unit=2.0**-23, losses=19),
    torch.float16: TensorCore(instruction_k=16, unit=2.0**-23, losses=19),
}
PRODUCTS_AT_ONCE = 2**27
"""Of which each takes four bytes while they are looked at."""
PROMOTION_K = 128
FLOAT32_UNIT = 2.0**-24
EPILOGUE_ROUNDINGS = 4
GROUP_ROUNDINGS = 3
"""Of one group's part of the sum, before it is added."""


def exact_scaled_mm(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, bias: Tensor | None = None) -> Tensor:
    """The result before any rounding, float64 [M, N]: what `tolerance` is a distance from. Arguments as in scaled_mm."""
    if (groups := groups_of(a, b, a_scales, b_scales)) is not None:
        return exact_group_scaled_mm(a, b, a_scales, b_scales, groups, bias)
    check_scales(a, b, a_scales, b_scales)
    scales = a_scales.reshape(-1, 1).to(torch.float64) * b_scales.reshape(1, -1).to(torch.float64)
    result = scales * (a.to(torch.float64) @ b.to(torch.float64))
    return result if bias is None else result + bias.reshape(1, -1).to(torch.float64)


def accumulation_error(a: Tensor, b: Tensor, accumulation: Accumulation) -> Tensor:
    """Bound on the error of the unscaled sum a b, float64 [M, N]; of no meaning where the sum is NaN."""
    if accumulation is Accumulation.EXACT:
        return torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    return _lost(a.to(torch.float64), b.to(torch.float64), TENSOR_CORES[a.dtype], accumulation)


def _lost(a: Tensor, b: Tensor, core: TensorCore, accumulation: Accumulation) -> Tensor:
    register = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    running, lowest, highest, lost, error = (register.clone() for _ in range(5))
    for start in range(0, a.shape[1], core.instruction_k):
        a_slice, b_slice = a[:, start : start + core.instruction_k], b[start : start + core.instruction_k]
        lost += _lost_at_once(a_slice, b_slice, torch.maximum(running - lowest, highest - running) + lost, core)
        running += a_slice @ b_slice
        lowest, highest = torch.minimum(lowest, running), torch.maximum(highest, running)
        if accumulation is Accumulation.PROMOTED and (start + core.instruction_k) % PROMOTION_K == 0:
            register += running
            error += lost + FLOAT32_UNIT * register.abs()
            for of_block in (running, lowest, highest, lost):
                of_block.zero_()
    return error + lost


def _lost_at_once(a: Tensor, b: Tensor, running: Tensor, core: TensorCore) -> Tensor:
    """By one instruction, before which the sum has at most these magnitudes."""
    if core.losses is not None:
        return core.losses * core.unit * torch.maximum(running, a.abs() @ b.abs())
    largest = torch.maximum(running, a.abs().amax(dim=1, keepdim=True) * b.abs().amax(dim=0, keepdim=True))
    unit = core.unit * torch.exp2(torch.frexp(largest)[1].to(torch.float64) - 1)
    # Exact in float32: 8 significant bits and a power of two.
    a, b, per_unit = a.to(torch.float32), b.to(torch.float32), (1 / unit).to(torch.float32)[:, None]
    units = torch.zeros_like(unit)
    at_once = max(1, PRODUCTS_AT_ONCE // max(unit.numel(), 1))
    for j in range(0, a.shape[1], at_once):
        products = (a[:, j : j + at_once, None] * b[None, j : j + at_once]).mul_(per_unit)
        units += products.frac_().abs_().sum(dim=1, dtype=torch.float64)
    return units * unit + torch.minimum(unit, running)


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
    scales = (a_scales.reshape(-1, 1).to(torch.float64) * b_scales.reshape(1, -1).to(torch.float64)).abs()
    exact = exact_scaled_mm(a, b, a_scales, b_scales)
    largest = exact.abs() + scales * sum_error
    if bias is not None:
        largest = largest + bias.reshape(1, -1).to(torch.float64).abs()
    error = scales * sum_error + EPILOGUE_ROUNDINGS * FLOAT32_UNIT * largest
    result = exact if bias is None else exact + bias.reshape(1, -1).to(torch.float64)
    return error + half_unit_in_last_place(result.abs() + error, out_dtype)


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
        lost = torch.zeros_like(error) if core is None else _lost(a_group, b_group, core, Accumulation.FAST)
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


def half_unit_in_last_place(magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    """Half the distance between neighbours of `dtype` at each magnitude, float64; of the subnormals below the smallest."""
    info = torch.finfo(dtype)
    smallest = math.frexp(info.smallest_normal)[1]
    exponent = torch.where(magnitude == 0, smallest, torch.frexp(magnitude.to(torch.float64))[1].clamp(min=smallest))
    return torch.exp2(exponent.to(torch.float64) - 1) * (info.eps / 2)
