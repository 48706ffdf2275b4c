"""Block-scaled quantisation as vLLM's kernels have it, for the ops under vLLM's names.

It is f32, every operation rounded on its own, and starts from the input's values:

    amax       largest absolute value of a group; NaN elements do not count
    nvfp4      scale = ue4m3(global * (amax * r(6))), code = e2m1(x * r(scale * r(global))), 0 where the scale is 0
    mxfp4      scale = 2^(floor(log2 of amax, rounded to two bits) - 2), code = e2m1(x / scale), 0 where the scale's byte is 0

r is the GPU's approximate reciprocal, which a unit in the last place may part from 1 / x. Here it is 1 / x, rounded
once. Subnormal operands and results of it are zero. `outside_of_vllm_interval` allows the changes that this unit can
cause.
"""

import torch
from torch import Tensor

from gemmill.arithmetic import grouped
from gemmill.formats.codes import decode, encode, pack, two_to
from gemmill.formats.intervals import rank_of
from gemmill.formats.quantise import BlockScaled, check_global_scale
from gemmill.vocab.float_type import UE8M0
from gemmill.vocab.format import Format

SCALE_STEPS, CODE_STEPS = 3.0, 6.0
"""Units (2^-24 of the value) by which two approximate reciprocals may part a scale before it is rounded, and a code:
for one reciprocal two and a rounding, and for two reciprocals four and two roundings.
"""
_UNIT = 2.0**-24
_NO_FACTOR = 2.0**-149
"""Makes the code of every number zero, and of NaN and infinity the largest."""


def quantise_as_vllm(x: Tensor, format: Format, *, global_scale: Tensor | None = None) -> BlockScaled:
    """x [rows, K] of any float type in nvfp4, with a global scale f32 [1], or in mxfp4. Raises ValueError as quantise does."""
    scales = scales_as_vllm(x, format, global_scale=global_scale)
    return BlockScaled(format=format, codes=codes_as_vllm(x, scales, format, global_scale=global_scale), scales=scales)


def scales_as_vllm(x: Tensor, format: Format, *, global_scale: Tensor | None = None, factor: float = 1.0) -> Tensor:
    """Scales of x, uint8 [rows, K / group], plain; `factor` multiplies the value that rounds to a scale of nvfp4."""
    format.scale_count(x.shape[-1])
    amax = grouped(x.float(), format.group).abs().nan_to_num(nan=0.0, posinf=torch.inf).amax(dim=-1)
    if global_scale is None:
        exponent = (amax.view(torch.int32) + (1 << 21)) >> 23
        return (exponent - 2).clamp_min(0).to(torch.uint8)
    check_global_scale(global_scale)
    sixth = _reciprocal(torch.full_like(amax, format.code.maximum))
    return encode(global_scale * (amax * sixth) * factor, format.scale)


def codes_as_vllm(
    x: Tensor, scales: Tensor, format: Format, *, global_scale: Tensor | None = None, factor: float = 1.0
) -> Tensor:
    """Packed codes of x [rows, K] by known scales; `factor` multiplies the value that rounds to a code of nvfp4."""
    groups = grouped(x.float(), format.group)
    if global_scale is None:
        by = two_to(UE8M0.bias - scales.int())
    else:
        by = _reciprocal(decode(scales, format.scale) * _reciprocal(global_scale))
        by = by.clamp_max(torch.finfo(torch.float32).max)
    by = torch.where(scales == 0, _NO_FACTOR, by)
    return pack(encode((groups * by[..., None] * factor).flatten(-2), format.code), format.code.bits)


def outside_of_vllm_interval(
    low: Tensor, high: Tensor, found: BlockScaled, *, global_scale: Tensor | None = None
) -> tuple[int, int]:
    """The number of codes and of scales of `found` that no input between low and high [rows, K], f32, would be given, whatever
    the unit of its reciprocals. Values whose interval is not finite do not count."""
    least = torch.where((low > 0) | (high < 0), torch.minimum(low.abs(), high.abs()), 0.0)
    most = torch.maximum(low.abs(), high.abs())
    lowest_scale, highest_scale = (
        scales_as_vllm(end, found.format, global_scale=global_scale, factor=1 + sign * SCALE_STEPS * _UNIT)
        for end, sign in ((least, -1), (most, 1))
    )
    wrong_scales = int(((found.scales < lowest_scale) | (found.scales > highest_scale)).sum())
    ends = [
        rank_of(
            codes_as_vllm(end, found.scales, found.format, global_scale=global_scale, factor=factor), found.format.code
        )
        for end in (low, high)
        for factor in (1 - CODE_STEPS * _UNIT, 1 + CODE_STEPS * _UNIT)
    ]
    rank = rank_of(found.codes, found.format.code)
    lowest, highest = torch.stack(ends).amin(dim=0), torch.stack(ends).amax(dim=0)
    finite = torch.isfinite(low) & torch.isfinite(high)
    return int((finite & ((rank < lowest) | (rank > highest))).sum()), wrong_scales


def _reciprocal(x: Tensor) -> Tensor:
    return _normal(torch.reciprocal(_normal(x)))


def _normal(x: Tensor) -> Tensor:
    """The same, zero where it is subnormal."""
    return torch.where(x.abs() < torch.finfo(torch.float32).tiny, 0.0, x)
