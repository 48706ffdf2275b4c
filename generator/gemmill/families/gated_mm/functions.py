"""The op as a function that allocates what it returns."""

import math

import torch

from gemmill.runtime.ops import overload

__all__ = ["scaled_mm_act_quant"]

_SCALED_MM_ACT_QUANT = overload("scaled_mm_act_quant")
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
    kinds = {"static_scale": static_scale is not None, "group_size": group_size is not None, "per_token": per_token}
    if sum(kinds.values()) > 1:
        told = " and ".join(name for name, is_given in kinds.items() if is_given)
        raise ValueError(f"{told} are given: results are coded by one kind of scales, leave the others out")
    if group_size not in (None, 128):
        raise ValueError(f"group_size is {group_size}, expected 128, or None for no scales of groups")
    hidden = b.shape[1] // 2
    coded = static_scale is not None or group_size is not None
    out = a.new_empty((a.shape[0], hidden), dtype=torch.float8_e4m3fn if coded else torch.bfloat16)
    scales = None if group_size is None else a.new_empty((a.shape[0], hidden // 128), dtype=torch.float32)
    _SCALED_MM_ACT_QUANT(out, scales, a, b, a_scales, b_scales, activation, alpha, limit, beta, static_scale)
    if not per_token:
        return out, scales
    codes, scales = (
        out.new_empty(out.shape, dtype=torch.float8_e4m3fn),
        out.new_empty((out.shape[0], 1), dtype=torch.float32),
    )
    _PER_TOKEN(codes, out, scales, None)
    return codes, scales
