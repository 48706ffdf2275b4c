"""Bounds between which codes and scales may lie where quantisation follows exp, tanh or erf.

A version of the CUDA library may differ from torch's by two units in the last place. A fused value then lies within
GATE_STEPS units of the one computed here. Its scale lies between those of the two ends, and its code between the codes
of the two ends by the found scale.
"""

import torch
from torch import Tensor

from gemmill.arithmetic import FLOAT32_UNIT
from gemmill.formats.codes import unpack
from gemmill.formats.quantise import BlockScaled, block_scales, codes_by
from gemmill.vocab.float_type import FloatType
from gemmill.vocab.format import ScaleRounding

GATE_STEPS = 4.0
"""Units (2^-24 of the library function's factor) between two versions of a fused value."""


def fused_interval(value: Tensor, magnitude: Tensor) -> tuple[Tensor, Tensor]:
    """The lowest and the highest f32 that a fused value may have.

    `magnitude` is the library function's factor: the value itself for silu, and gate * up or x for GELU.
    """
    slack = torch.where(torch.isfinite(value), magnitude.abs() * (GATE_STEPS * FLOAT32_UNIT), 0.0)
    return value - slack, value + slack


def outside_of_interval(
    low: Tensor,
    high: Tensor,
    found: BlockScaled,
    *,
    global_scale: Tensor | None = None,
    rounding: ScaleRounding = ScaleRounding.UP,
) -> tuple[int, int]:
    """The number of codes and of scales of `found` that no input between low and high [rows, K], f32, would be given.

    Arguments are as in quantise. Values whose interval is not finite do not count.
    """
    least = torch.where((low > 0) | (high < 0), torch.minimum(low.abs(), high.abs()), 0.0)
    lowest_scale, highest_scale = (
        block_scales(end, found.format, global_scale=global_scale, rounding=rounding)
        for end in (least, torch.maximum(low.abs(), high.abs()))
    )
    wrong_scales = int(((found.scales < lowest_scale) | (found.scales > highest_scale)).sum())
    lowest, highest = (
        rank_of(codes_by(end, found.scales, found.format, global_scale=global_scale), found.format.code)
        for end in (low, high)
    )
    rank = rank_of(found.codes, found.format.code)
    finite = torch.isfinite(low) & torch.isfinite(high)
    return int((finite & ((rank < lowest) | (rank > highest))).sum()), wrong_scales


def rank_of(packed: Tensor, kind: FloatType) -> Tensor:
    """The codes as integers in the order of their values; -0 and 0 are the same."""
    codes = unpack(packed, kind.bits).int()
    sign = 1 << (kind.bits - 1)
    return torch.where(codes >= sign, sign - codes, codes)
