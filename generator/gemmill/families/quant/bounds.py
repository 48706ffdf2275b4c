"""Bounds between which codes and scales may lie where they need not equal the reference bit for bit.

Two things only are free in their bits, because the device or its library decides them:

- exp, tanh and erf are the CUDA library's. Versions of it differ: erff is another polynomial since CUDA 13.5 than in
  13.0, with which torch 2.11 was built. Each version is within two units in the last place, so a gated value lies
  within `GATE_STEPS` units of the one computed here. Its scale lies between those of the two ends, and its code between
  the codes of the two ends by the found scale.
- vLLM's block-scaled formats take approximate reciprocals, exponentials and quotients of the device. See
  gemmill.formats.vllm_blocks, and `product_interval`.
"""

import torch

from gemmill.families.quant.config import Activation, QuantConfig, ScaleFormat, Scaling
from gemmill.families.quant.reference import (
    CODE_MAX,
    SMALLEST_SCALE,
    absolute_maximum,
    activated,
    divide,
    divided_silu,
    encode,
    round_up_to_power_of_two,
    rounded_product,
)
from gemmill.formats.intervals import outside_of_interval
from gemmill.formats.quantise import BlockScaled
from gemmill.formats.vllm_blocks import outside_of_vllm_interval
from gemmill.vocab import DType
from gemmill.vocab.format import ScaleRounding

GATE_STEPS = 4.0
"""Units (2^-24 of the library function's factor) between two versions of a gated value."""
_UNIT = 2.0**-24


def gated_interval(
    x: torch.Tensor, activation: Activation, *, rounded: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lowest and highest f32 value of activation(gate) * up of x [rows, 2 hidden], which is gate, then up.

    Without a gate, x is [rows, hidden], and the value is activation(x). `rounded` values round to x's type at the end,
    those of gates in between too, as vLLM's SiLU does for given scales.

    exp's error is relative to the value. Those of tanh and erf are relative to 1, so to gate * up or x.
    """
    if rounded and activation.is_gated:
        gate, up = x.float().chunk(2, dim=-1)
        silu = divided_silu(gate)
        slack = torch.where(torch.isfinite(silu), silu.abs() * (GATE_STEPS * _UNIT), 0.0)
        ends = [rounded_product(end, up, x.dtype) for end in (silu - slack, silu + slack)]
        return torch.minimum(*ends), torch.maximum(*ends)
    value = activated(x, activation, contracted=rounded)
    magnitude = value.abs()
    if not activation.is_gated:
        magnitude = torch.maximum(magnitude, x.float().abs())
    elif activation is not Activation.SILU:
        hidden = x.shape[-1] // 2
        magnitude = torch.maximum(magnitude, (x[..., :hidden].float() * x[..., hidden:].float()).abs())
    slack = torch.where(torch.isfinite(value), magnitude * (GATE_STEPS * _UNIT), 0.0)
    low, high = value - slack, value + slack
    return (low.to(x.dtype).float(), high.to(x.dtype).float()) if rounded else (low, high)


def product_interval(x: torch.Tensor, activation: Activation) -> tuple[torch.Tensor, torch.Tensor]:
    """Lowest and highest f32 value of reference.product_as_vllm, whose exponential and quotient are the device's approximate
    ones.

    The CUDA programming guide gives their errors: 2 + floor(1.173 |gate|) and 2 units in the last place. A quotient by 2^126 and
    more is zero.
    """
    if activation is Activation.NONE:
        return x.float(), x.float()
    gate, up = x.float().chunk(2, dim=-1)
    silu = divided_silu(gate)
    slack = silu.abs() * ((8.0 + 1.2 * gate.abs()) * 2.0**-23) + 2.0**-118
    slack = torch.where(torch.isfinite(silu), slack, 0.0)
    ends = [((silu + sign * slack) * up).to(x.dtype).float() for sign in (-1, 1)]
    return torch.minimum(*ends), torch.maximum(*ends)


def code_rank(codes: torch.Tensor) -> torch.Tensor:
    """Codes (float8_e4m3fn or int8) as integers in the order of their values; -0 and 0 are the same, NaN is above
    all."""
    if codes.dtype is torch.int8:
        return codes.int()
    bits = codes.view(torch.uint8).int()
    rank = torch.where(bits >= 128, 128 - bits, bits)
    return torch.where((bits & 0x7F) == 0x7F, torch.full_like(rank, 127), rank)


def unpack_ue8m0(packed: torch.Tensor, groups: int) -> torch.Tensor:
    """Scales f32 [rows, groups] of words s32 [rows, ceil(groups / 4)]: the inverse of pack_ue8m0."""
    shifts = torch.arange(0, 32, 8, device=packed.device, dtype=torch.int32)
    exponents = (packed[..., None] >> shifts) & 0xFF
    return (exponents.reshape(packed.shape[0], -1)[:, :groups] << 23).view(torch.float32)


def outside_of_gate_bounds(
    config: QuantConfig,
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    *,
    scale_ub: torch.Tensor | None = None,
    smallest_scale: float | None = None,
) -> tuple[int, int]:
    """How many codes and scales of a gated variant lie outside of the results of any exp, tanh or erf of two units.

    x [rows, 2 hidden]; codes [rows, hidden]; scales as the variant's op writes them (static: as given, [1]).
    """
    low, high = gated_interval(x, config.activation, rounded=config.vllm and config.scaling is Scaling.STATIC)
    rows, hidden = low.shape
    group = config.group_size or hidden
    low, high = low.reshape(rows, -1, group), high.reshape(rows, -1, group)
    if config.scale_format is ScaleFormat.PACKED_UE8M0:
        scales = unpack_ue8m0(scales, hidden // group)
    found = scales.reshape(1, 1, 1) if config.scaling is Scaling.STATIC else scales.reshape(rows, -1, 1)
    wrong_scales = 0
    if config.scaling is not Scaling.STATIC:
        least = torch.where((low > 0) | (high < 0), torch.minimum(low.abs(), high.abs()), torch.zeros_like(low))
        smallest = SMALLEST_SCALE[config.out_dtype] if smallest_scale is None else smallest_scale
        ends = [
            _scale(config, absolute_maximum(end, torch.nan if config.vllm else 0.0), scale_ub, smallest)
            for end in (least, torch.maximum(low.abs(), high.abs()))
        ]
        wrong_scales = int(((found < ends[0]) | (found > ends[1]) | torch.isnan(found)).sum())
    ranks = code_rank(codes).reshape(rows, -1, group)
    lowest, highest = (code_rank(_code(config, end, found)) for end in (low, high))
    finite = torch.isfinite(low) & torch.isfinite(high)
    return int((finite & ((ranks < lowest) | (ranks > highest))).sum()), wrong_scales


def _scale(config: QuantConfig, amax: torch.Tensor, scale_ub: torch.Tensor | None, smallest: float) -> torch.Tensor:
    if scale_ub is not None and not config.scaling.is_grouped:
        amax = torch.fmin(amax, scale_ub)
    scale = divide(amax, CODE_MAX[config.out_dtype])
    if scale_ub is not None and config.scaling.is_grouped:
        scale = torch.fmin(scale, scale_ub)
    scale = torch.fmax(scale, torch.full_like(scale, smallest))
    return scale if config.scale_format is ScaleFormat.F32 else round_up_to_power_of_two(scale)


def _code(config: QuantConfig, values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    by_reciprocal = config.scaling is Scaling.STATIC and config.out_dtype is DType.E4M3
    return encode(values * torch.reciprocal(scale) if by_reciprocal else values / scale, config.out_dtype)


def outside_of_block_bounds(
    config: QuantConfig,
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    *,
    global_scale: torch.Tensor | None = None,
    rounding: ScaleRounding = ScaleRounding.UP,
    rounded: bool = False,
) -> tuple[int, int]:
    """How many codes and scales of a block-scaled variant lie outside of the bounds of `outside_of_gate_bounds`.

    Codes are packed [rows, bytes], scales plain [rows, groups], both uint8.
    """
    assert config.format is not None
    found = BlockScaled(format=config.format, codes=codes, scales=scales)
    if config.vllm:
        return outside_of_vllm_interval(*product_interval(x, config.activation), found, global_scale=global_scale)
    low, high = gated_interval(x, config.activation, rounded=rounded)
    return outside_of_interval(low, high, found, global_scale=global_scale, rounding=rounding)
