"""Bounds between which a right kernel's results lie.

A kernel's product differs from the exact one by the tensor core's loss in the sum (gemmill.arithmetic), then by its
rounding to bf16. An activation's slope is at most 1.13, and its value is no further from 0 than its gate. So value and
exact value are apart by at most

    1.13 |gate error| (|up| + |up error|) + |gate| |up error|

and by the error of the activation itself. exp, tanh and erf are the CUDA library's, within `GATE_STEPS` units of
torch's, as in silu_and_mul_quant. Where sums are exact, that error is all. Those of s8 always are, and each later step
rounds as in the reference. A stored result lies between the stored forms of the lowest and the highest value.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.arithmetic import FLOAT32_UNIT, OF_E4M3, half_unit_in_last_place, lost_in_sum
from gemmill.families.gated_mm import reference
from gemmill.families.gated_mm.config import Activation
from gemmill.formats.gating import group_codes, group_scales, slack_of

_EPILOGUE_ROUNDINGS = 4
_GROUP_ROUNDINGS = 3
"""Roundings of a group: the product of scales, its product with a sum, and the addition."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Lowest and highest value of each result, float32 [M, hidden], before its storage."""

    low: Tensor
    high: Tensor
    known: Tensor
    """Where both are finite, bool [M, hidden]. The comparison skips other results."""


def product_error(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> Tensor:
    """How far the product in bf16 may be from the reference's, float64 [M, N]."""
    if reference.groups_of(b, b_scales) is not None:
        return _error_in_groups(a, b, a_scales, b_scales)
    scales = a_scales.reshape(-1, 1).double().abs() * b_scales.reshape(1, -1).double().abs()
    exact = scales * reference.exact_mm(a, b).abs()
    lost = scales * lost_in_sum(a.double(), b.double(), OF_E4M3)
    error = lost + _EPILOGUE_ROUNDINGS * FLOAT32_UNIT * (exact + lost)
    return error + 2 * half_unit_in_last_place(exact + error, torch.bfloat16)


def _error_in_groups(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> Tensor:
    """The product's error, float64 [M, N], where sums of a group along K leave the tensor core.

    They add up in float32 with their scales.
    """
    error = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    magnitude, exact = error.clone(), error.clone()
    for of_a, of_b, scale in reference.each_group(a, b, a_scales, b_scales):
        part, lost = of_a @ of_b, lost_in_sum(of_a, of_b, OF_E4M3)
        term = scale.abs() * (part.abs() + lost)
        magnitude += term
        exact += scale * part
        error += scale.abs() * lost + _GROUP_ROUNDINGS * FLOAT32_UNIT * term + FLOAT32_UNIT * magnitude
    return error + 2 * half_unit_in_last_place(exact.abs() + error, torch.bfloat16)


def interval(
    operands: tuple[Tensor, Tensor, Tensor, Tensor],
    activation: Activation,
    numbers: tuple[float, float, float],
    *,
    exactly: bool,
) -> Interval:
    """The lowest and highest value of each result.

    `operands` are a, b, a_scales and b_scales; `numbers` are alpha, limit and beta. `exactly`: every order of summation
    gives the same, as it always does for s8.
    """
    a, b, _, _ = operands
    value = reference.values(*operands, activation, *numbers)
    gate_rows, up_rows = reference.rows_of(b, operands[3])
    product = reference.rounded_mm(*operands)
    error = None if exactly or a.dtype is torch.int8 else product_error(*operands)
    errors = None if error is None else (error[:, gate_rows], error[:, up_rows])
    slack = slack_of(value, (product[:, gate_rows], product[:, up_rows]), errors, activation, numbers)
    low, high = (value.double() - slack).float(), (value.double() + slack).float()
    return Interval(low=low, high=high, known=low.isfinite() & high.isfinite())


def outside_of_values(found: Tensor, within: Interval) -> Tensor:
    """Which results in bf16 [M, hidden] are wrong, bool [M, hidden]."""
    low, high = within.low.bfloat16(), within.high.bfloat16()
    return within.known & ~((found >= low) & (found <= high))


def outside_of_static(found: Tensor, scale: Tensor, within: Interval) -> Tensor:
    """Which e4m3 codes [M, hidden] by the given float32 scale are wrong, bool [M, hidden]."""
    low, high = (reference.static_codes(end, scale) for end in (within.low, within.high))
    return within.known & ((_rank(found) < _rank(low)) | (_rank(found) > _rank(high)))


def outside_of_groups(found: Tensor, scales: Tensor, within: Interval) -> tuple[Tensor, Tensor]:
    """Which codes [M, hidden] and which scales [M, hidden / 128] are wrong. The found scales decide which codes are
    right.
    """
    low, high = within.low, within.high
    size = found.shape[1] // max(scales.shape[1], 1) or 1
    least = torch.where((low > 0) | (high < 0), torch.minimum(low.abs(), high.abs()), 0.0)
    known = within.known.unflatten(1, (-1, size)).all(dim=-1)
    ends = [group_scales(end, size) for end in (least, torch.maximum(low.abs(), high.abs()))]
    wrong_scales = known & ~((scales >= ends[0]) & (scales <= ends[1]))
    lowest, highest = (_rank(group_codes(end, scales, size)) for end in (low, high))
    rank = _rank(found)
    return within.known & ((rank < lowest) | (rank > highest)), wrong_scales


def _rank(codes: Tensor) -> Tensor:
    """e4m3 codes as integers in the order of their values: -0 and 0 are the same, and NaN is above all."""
    bits = codes.view(torch.uint8).int()
    rank = torch.where(bits >= 128, 128 - bits, bits)
    return torch.where((bits & 0x7F) == 0x7F, torch.full_like(rank, 127), rank)
