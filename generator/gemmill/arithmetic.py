"""Arithmetic that references and bounds of several families share: streams of codes, sums on tensor cores, units in the last place.

bf16 and f16 on Hopper's tensor core: products are exact. An instruction adds 16 of them and the running sum, aligned to
the largest. It keeps at least 23 bits below its exponent, and cuts off the rest. Source: Fasi, Higham, Mikaitis and
Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 2021, and its successors for Hopper. So
each of 17 terms loses less than 2^-23 of the largest. The result, cut off to float32, loses as much of itself, which is
at most twice that: 19 x 2^-23 in all.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

FLOAT32_UNIT = 2.0**-24
EPILOGUE_ROUNDINGS = 4
INT32_SPAN = 2**32


@dataclass(frozen=True, kw_only=True)
class TensorCore:
    """How sums of one type's products lose bits."""

    instruction_k: int
    """Products that one instruction adds to a sum."""
    losses: int
    """How many times it loses less than a unit of the largest term."""
    unit: float


OF_16_BITS = TensorCore(instruction_k=16, losses=19, unit=2.0**-23)
OF_E4M3 = TensorCore(instruction_k=32, losses=33, unit=2.0**-13)
"""Sums keep 13 bits below the largest (FP22): each of 33 terms loses less than 2^-13 of it."""


def lost_in_sum(a: Tensor, b: Tensor, core: TensorCore, *, promoted_k: int | None = None) -> Tensor:
    """Bound on a tensor core's loss in the sum a [M, K] b [K, N] along K, in ascending order; all of float64.

    `promoted_k`: products after which the hardware adds the sum to a float32 register and starts from zero; None:
    never.
    """
    register = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    running, error = register.clone(), register.clone()
    for start in range(0, a.shape[1], core.instruction_k):
        end = start + core.instruction_k
        a_slice, b_slice = a[:, start:end], b[start:end]
        largest = torch.maximum(running.abs(), a_slice.abs() @ b_slice.abs())
        error += core.losses * core.unit * largest
        running += a_slice @ b_slice
        if promoted_k is not None and end % promoted_k == 0:
            register += running
            error += FLOAT32_UNIT * register.abs()
            running.zero_()
    return error


def lost_in_any_order(a: Tensor, b: Tensor, core: TensorCore) -> Tensor:
    """The same where instructions take the columns in an order of their own: no sum is larger than that of all magnitudes."""
    instructions = -(-a.shape[1] // core.instruction_k)
    return instructions * core.losses * core.unit * (a.abs() @ b.abs())


def scaled_sums(
    total: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
    azp_adj: Tensor | None = None,
    azp: Tensor | None = None,
) -> Tensor:
    """a_scales b_scales (total - zero point) + bias of `out_dtype`, as GEMMs' epilogues round it.

    total [M, N] float64, exact sums; a_scales of 1 or M values, b_scales of 1 or N; bias [N]; azp_adj int32 [N]. An azp
    of M values multiplies azp_adj.
    """
    if azp_adj is not None:
        total = _subtract_zero_point(total, azp_adj, azp)
    scaled = total.to(torch.float32) * b_scales.reshape(1, -1)
    column = a_scales.reshape(-1, 1)
    if bias is None:
        return (column * scaled).to(out_dtype)
    return fused_multiply_add(column, scaled, bias.reshape(1, -1).to(torch.float32)).to(out_dtype)


def scaled_error(
    total: Tensor,
    lost: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """Largest distance of a right epilogue's result from the exact one, [M, N] as all of these. total: exact sums; lost: by
    how much those of the tensor core may be off.

    A sum's rounding to float32, b's scale, a's scale and the bias are four roundings of 2^-24. Storing costs half a unit in the
    last place.
    """
    scales = a_scales.reshape(-1, 1).to(torch.float64) * b_scales.reshape(1, -1).to(torch.float64)
    result = scales * total
    scales = scales.abs()
    largest = result.abs() + scales * lost
    if bias is not None:
        added = bias.reshape(1, -1).to(torch.float64)
        largest, result = largest + added.abs(), result + added
    error = scales * lost + EPILOGUE_ROUNDINGS * FLOAT32_UNIT * largest
    return error + half_unit_in_last_place(result.abs() + error, out_dtype)


def _subtract_zero_point(total: Tensor, azp_adj: Tensor, azp: Tensor | None) -> Tensor:
    """In 32-bit integers, which wrap around, as in the kernel."""
    correction = azp_adj.reshape(1, -1).to(torch.int64)
    if azp is not None:
        correction = azp.reshape(-1, 1).to(torch.int64) * correction
    difference = total.to(torch.int64) - correction
    return (difference + INT32_SPAN // 2) % INT32_SPAN - INT32_SPAN // 2


def fused_multiply_add(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """x y + z of float32 tensors, rounded once, as the hardware's FMA does.

    The product is exact in float64. Its sum with z is not always, and rounding that again to float32 can go astray at a
    tie. So the float64 sum first rounds to odd, with the error that Knuth's two-sum gives (Boldo and Melquiond,
    "Emulation of FMA and correctly rounded sums", 2008).
    """
    product, z = torch.broadcast_tensors(x.to(torch.float64) * y.to(torch.float64), z.to(torch.float64))
    total = product + z
    part = total - product
    error = (product - (total - part)) + (z - part)
    bits = total.view(torch.int64)
    # The next float64 towards the error lies one bit pattern away: up if error and sum have the same sign, else down.
    step = torch.where((error > 0) == (total > 0), 1, -1)
    inexact = torch.isfinite(total) & torch.isfinite(error) & (error != 0) & (bits % 2 == 0)
    return torch.where(inexact, bits + step, bits).view(torch.float64).to(torch.float32)


def half_unit_in_last_place(magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    """Half the distance between neighbours of `dtype` at each magnitude, float64; of the subnormals below the smallest."""
    info = torch.finfo(dtype)
    smallest = math.frexp(info.smallest_normal)[1]
    exponent = torch.where(magnitude == 0, smallest, torch.frexp(magnitude.to(torch.float64))[1].clamp(min=smallest))
    return torch.exp2(exponent.to(torch.float64) - 1) * (info.eps / 2)


def grouped(x: Tensor, size: int) -> Tensor:
    """[..., K] as [..., K / size, size]."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def regrouped(words: Tensor, size: int, into: int) -> Tensor:
    """A stream of words [..., K] of `size` bits as words of `into` bits, uint8, the first in the low bits; whole bytes of them."""
    span = math.lcm(size, into)
    split = grouped(words.to(torch.uint8), span // size)
    parts = split.new_zeros(*split.shape[:-1], span // into)
    for i, start in enumerate(range(0, span, size)):
        word = split[..., i]
        for j in range(start // into, (start + size - 1) // into + 1):
            by = start - j * into
            parts[..., j] |= word << by if by >= 0 else word >> -by
    return (parts if into == 8 else parts & ((1 << into) - 1)).flatten(-2)
