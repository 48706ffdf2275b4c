"""The ops as functions that allocate what they return."""

import math

import torch

from gemmill.runtime.ops import overload

__all__ = ["grouped_mm_act_quant", "grouped_mm_act_quant_masked", "scaled_mm_act_quant"]

_SCALED_MM_ACT_QUANT = overload("scaled_mm_act_quant")
_GROUPED, _MASKED = overload("grouped_mm_act_quant"), overload("grouped_mm_act_quant_masked")
_PER_TOKEN = overload("dynamic_per_token_scaled_fp8_quant")


def scaled_mm_act_quant(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    activation: str = "silu",
    alpha: float = 1.0,
    limit: float = math.inf,
    beta: float = 0.0,
    static_scale: torch.Tensor | None = None,
    group_size: int | None = None,
    per_token: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """activation(gate) * up of the product a_scales b_scales (a b), whose columns are gates and ups: (out, its scales).

    a is [M, K], b [K, 2 hidden] column-major in the order of gemmill.quantize.prepack_gate_up, both float8_e4m3fn. a_scales
    are float32, one value or [M, 1], b_scales one or [2 hidden] in b's order. Or in groups: a_scales [M, ceil(K / 128)], and b_scales
    [ceil(K / 128), 2 ceil(hidden / 128)], the first gates', their ups', the next gates'.

    activation is silu, gelu, gelu_tanh or swiglu. Of swiglu a gate is held at `limit` at most, an up between both limits; out is
    gate * sigmoid(alpha gate) * (up + beta). Bits are those of the product in bfloat16, then the activation.

    out is [M, hidden]: bfloat16; or float8_e4m3fn by static_scale, float32 [1]; or with group_size 128 float8_e4m3fn and scales
    [M, hidden / 128], else None. With per_token out is float8_e4m3fn and scales are [M, 1]: a second launch codes the bfloat16 result,
    whose bits are those of dynamic_per_token_scaled_fp8_quant. Raises RuntimeError with one sentence where the arguments do not fit,
    ValueError for another group_size, or for scales of two kinds.
    """
    _check_kinds(static_scale=static_scale is not None, group_size=group_size is not None, per_token=per_token)
    out, scales = _allocated(a, b.shape[1] // 2, static_scale, group_size)
    _SCALED_MM_ACT_QUANT(out, scales, a, b, a_scales, b_scales, activation, alpha, limit, beta, static_scale)
    if not per_token:
        return out, scales
    codes, scales = (
        out.new_empty(out.shape, dtype=torch.float8_e4m3fn),
        out.new_empty((out.shape[0], 1), dtype=torch.float32),
    )
    _PER_TOKEN(codes, out, scales, None)
    return codes, scales


def grouped_mm_act_quant(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    expert_offsets: torch.Tensor,
    activation: str = "silu",
    alpha: float = 1.0,
    limit: float = math.inf,
    beta: float = 0.0,
    static_scale: torch.Tensor | None = None,
    group_size: int | None = None,
    expert_map: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The same of rows that belong to experts, each with weights of its own: (out, its scales).

    a is [M, K] and b [E, 2 hidden, K], each expert's in the order of gemmill.quantize.prepack_gate_up. Rows of expert e are
    expert_offsets[e] up to expert_offsets[e + 1]: int32 or int64 [E + 1], on the device. a_scales are float32, one value or [M, 1],
    b_scales [E] or [E, 2 hidden] in b's order. Or in groups: a_scales [M, ceil(K / 128)], and b_scales [E, 2 ceil(hidden / 128), ceil(K /
    128)], the first gates', their ups', the next gates'. expert_map is int32 [E]: which of b an expert multiplies by, -1 for none. What
    out and its scales are static_scale and group_size say, as of scaled_mm_act_quant; rows of no expert are not written. Bits are those
    of grouped_mm to bfloat16, then the activation. Raises RuntimeError with one sentence where the arguments do not fit, ValueError
    for another group_size, or for scales of two kinds.
    """
    _check_kinds(static_scale=static_scale is not None, group_size=group_size is not None)
    out, scales = _allocated(a, b.shape[1] // 2, static_scale, group_size)
    numbers = activation, alpha, limit, beta
    _GROUPED(out, scales, a, b, a_scales, b_scales, expert_offsets, *numbers, static_scale, expert_map)
    return out, scales


def grouped_mm_act_quant_masked(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    rows: torch.Tensor,
    activation: str = "silu",
    alpha: float = 1.0,
    limit: float = math.inf,
    beta: float = 0.0,
    static_scale: torch.Tensor | None = None,
    group_size: int | None = None,
    expert_map: torch.Tensor | None = None,
    expected_rows: int = 0,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The same of a [E, max_m, K], of which the first rows[e] rows are expert e's: rows is int32 or int64 [E], on the device.

    a_scales are [E, max_m, 1], or [E, max_m, ceil(K / 128)] with all rows at one stride. expected_rows, of an expert, helps to choose
    a variant; 0 stands for max_m. out is [E, max_m, hidden], its scales [E, max_m, hidden / 128].
    """
    _check_kinds(static_scale=static_scale is not None, group_size=group_size is not None)
    out, scales = _allocated(a, b.shape[1] // 2, static_scale, group_size)
    numbers = activation, alpha, limit, beta
    _MASKED(out, scales, a, b, a_scales, b_scales, rows, *numbers, static_scale, expert_map, expected_rows)
    return out, scales


def _check_kinds(**kinds: bool) -> None:
    """Raise ValueError where results are to have scales of two kinds."""
    if sum(kinds.values()) > 1:
        told = " and ".join(name for name, is_given in kinds.items() if is_given)
        raise ValueError(f"{told} are given: results are coded by one kind of scales, leave the others out")


def _allocated(
    a: torch.Tensor, hidden: int, static_scale: torch.Tensor | None, group_size: int | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out for a's rows, and out's scales. Raises ValueError for another group_size than 128."""
    if group_size not in (None, 128):
        raise ValueError(f"group_size is {group_size}, expected 128, or None for no scales of groups")
    coded = static_scale is not None or group_size is not None
    out = a.new_empty((*a.shape[:-1], hidden), dtype=torch.float8_e4m3fn if coded else torch.bfloat16)
    return out, None if group_size is None else a.new_empty((*a.shape[:-1], hidden // 128), dtype=torch.float32)
