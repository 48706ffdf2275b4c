"""How far a right kernel may be from the exact result, element by element, from the arithmetic of the hardware.

The arithmetic is that of a GEMM of each expert's rows. Sums of s8 are integers of 32 bits, so that only the epilogue
rounds, as the reference does. For e4m3 an instruction of Hopper's tensor core adds 32 products and the running sum as
fixed-point numbers. They keep 13 bits below the largest one's exponent, so each of the 33 terms loses less than 2^-13
of the largest. Sums join float32 registers after each group with scales in groups, every 128 along K in promoting
kernels, else never. Scales in groups cost three roundings of the addend, and one of the register. The epilogue costs
two more, and storing half a unit in the last place. For bf16 and f16 see `gemmill.arithmetic`. An alpha is exact where
scales of columns take it in, for exact results have the rounded product too. Elsewhere alpha, and a bias, cost one
rounding.
"""

import torch
from torch import Tensor

from gemmill.arithmetic import (
    FLOAT32_UNIT,
    OF_16_BITS,
    OF_E4M3,
    half_unit_in_last_place,
    lost_in_any_order,
    lost_in_sum,
)
from gemmill.families.grouped_mm.reference import each_group, exact_mm, packed_exact_mm, scale_groups_of, with_alpha

GROUP_ROUNDINGS, EPILOGUE_ROUNDINGS = 3, 3


def tolerance(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor | None,
    b_scales: Tensor | None,
    out_dtype: torch.dtype,
    alpha: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    promoted: bool,
) -> Tensor:
    """Largest |kernel - exact_mm| of a right kernel, float64 [M, N]; arguments as in exact_mm.

    promoted: whether sums of e4m3 leave the tensor core every 128 along K; with scales in groups they do so after each group.
    """
    exact = exact_mm(a, b, a_scales, b_scales, alpha, bias).abs()
    if a_scales is None or b_scales is None:
        error = lost_in_sum(a.double(), b.double().t(), OF_16_BITS)
        return _ended(error, exact, out_dtype, alpha, bias)
    if b_scales.dim() == 2:
        return _ended(_lost_in_groups(a, b, a_scales, b_scales), exact, out_dtype, alpha, bias)
    columns = with_alpha(b_scales, alpha).reshape(1, -1).double().abs()
    scales = a_scales.reshape(-1, 1).double().abs() * columns
    error = torch.zeros_like(exact)
    if a.dtype is not torch.int8:
        error = scales * lost_in_sum(a.double(), b.double().t(), OF_E4M3, promoted_k=128 if promoted else None)
    error = error + EPILOGUE_ROUNDINGS * FLOAT32_UNIT * (_beside(exact, bias) + error)
    return error + half_unit_in_last_place(exact + error, out_dtype)


def _ended(error: Tensor, exact: Tensor, out_dtype: torch.dtype, alpha: Tensor | None, bias: Tensor | None) -> Tensor:
    """The error of alpha * sum + bias in one fused operation, stored, from that of the sum; `exact` is its magnitude."""
    if alpha is not None:
        error = error * alpha.reshape(()).double().abs()
    if alpha is not None or bias is not None:
        error = error + FLOAT32_UNIT * (exact + error)
    return error + half_unit_in_last_place(exact + error, out_dtype)


def _beside(exact: Tensor, bias: Tensor | None) -> Tensor:
    """The largest magnitude on the way to a result: before a bias, or with it."""
    return exact if bias is None else exact + bias.double().abs()


PACKED_PARTS = 4
"""Parts of K with sums of their own, which add up in float32."""
PACKED_ROUNDINGS = 3
"""Roundings in the epilogue: of a base with alpha, of a row's scale, and of the bias."""


def packed_tolerance(a: Tensor, b: Tensor, bias: Tensor | None, out_dtype: torch.dtype, *, folded: bool) -> Tensor:
    """Largest |kernel - packed_exact_mm| of a right kernel of packed weights, float64 [M, N]; arguments as in packed_exact_mm.

    `folded`: whether operands are e4m3, not 16-bit numbers. In whatever order an instruction takes the columns, no sum is
    larger than that of all magnitudes.
    """
    magnitude = a.abs() @ b.abs().t()
    error = lost_in_any_order(a, b.t(), OF_E4M3 if folded else OF_16_BITS) + PACKED_PARTS * FLOAT32_UNIT * magnitude
    largest = magnitude + error if bias is None else magnitude + error + bias.double().abs()
    error = error + PACKED_ROUNDINGS * FLOAT32_UNIT * largest
    return error + half_unit_in_last_place(packed_exact_mm(a, b, bias).abs() + error, out_dtype)


def _lost_in_groups(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> Tensor:
    error = torch.zeros(a.shape[0], b.shape[0], dtype=torch.float64, device=a.device)
    magnitude, size = error.clone(), scale_groups_of(b_scales, *b.shape).size
    for g, (part, scale) in enumerate(each_group(a, b, a_scales, b_scales)):
        columns = slice(size * g, size * g + size)
        lost = lost_in_sum(a[:, columns].double(), b[:, columns].double().t(), OF_E4M3)
        term = scale.abs() * (part.abs() + lost)
        magnitude += term
        error += scale.abs() * lost + GROUP_ROUNDINGS * FLOAT32_UNIT * term + FLOAT32_UNIT * magnitude
    return error
