"""The quantisation ops as functions that allocate their results.

Each raises RuntimeError with one sentence where its arguments do not fit. The arithmetic is that of
gemmill.families.quant.reference.
"""

import torch

from gemmill.families.quant.functions import blocks
from gemmill.families.quant.functions.blocks import *  # noqa: F403 (what it declares public)
from gemmill.runtime.sizes import parts, size

__all__ = [
    "act_and_mul_per_block_quant",
    "act_and_mul_per_token_quant",
    "act_and_mul_quant",
    "dynamic_per_token_scaled_fp8_quant",
    "dynamic_scaled_fp8_quant",
    "dynamic_scaled_int8_quant",
    "dynamic_scaled_int8_quant_row_sums",
    "dynamic_tensor_scaled_int8_quant",
    "fused_add_rms_norm_static_fp8_quant",
    "per_token_group_fp8_quant",
    "per_token_group_fp8_quant_packed",
    "per_token_group_quant_int8",
    "per_token_group_quant_int8_azp",
    "rms_norm_dynamic_per_token_quant",
    "rms_norm_per_block_quant",
    "rms_norm_static_fp8_quant",
    "silu_and_mul_per_block_quant",
    "silu_and_mul_per_token_quant",
    "silu_and_mul_quant",
    "static_scaled_fp8_quant",
    "static_scaled_int8_quant",
]
__all__ += blocks.__all__

E4M3_MAX = 448.0
_ops = torch.ops.gemmill
Pair = tuple[torch.Tensor, torch.Tensor]


def _codes(x: torch.Tensor, dtype: torch.dtype, *, gated: bool = False) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], size(x, -1) // 2 if gated else size(x, -1)), dtype=dtype)


def _token_scales(x: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], 1), dtype=dtype)


def _group_scales(
    x: torch.Tensor, groups: int, transposed: bool, aligned: bool = False, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Memory for scales [rows, groups]: row-major, or M-major with columns `rows` apart, rounded up to 4 if aligned."""
    rows = x.numel() // x.shape[-1] if size(x, -1) else x.shape[:-1].numel()
    if not transposed:
        return x.new_empty((rows, groups), dtype=dtype)
    step = -(-rows // 4) * 4 if aligned else rows
    return x.new_empty((groups, step), dtype=dtype).t()[:rows]


def static_scaled_fp8_quant(
    input: torch.Tensor, scale: torch.Tensor, group_shape: tuple[int, int] | None = None
) -> torch.Tensor:
    """Return float8_e4m3fn codes [..., hidden] of `input` [..., hidden] (bf16, f16 or f32) by given scales, f32.

    `group_shape` gives the shape of the scales: one value for None, [rows] for (1, -1), [hidden] for (-1, 1), and [rows
    / m, hidden / n] for (m, n).
    """
    result = _codes(input, torch.float8_e4m3fn)
    _ops.static_scaled_fp8_quant.default(result, input, scale, group_shape)
    return result


def dynamic_scaled_fp8_quant(input: torch.Tensor) -> Pair:
    """Return float8_e4m3fn codes [..., hidden] of `input` [..., hidden] (bf16, f16 or f32), and its one scale, f32
    [1]."""
    result, scale = _codes(input, torch.float8_e4m3fn), input.new_empty(1, dtype=torch.float32)
    _ops.dynamic_scaled_fp8_quant.default(result, input, scale)
    return result, scale


def dynamic_tensor_scaled_int8_quant(
    input: torch.Tensor, symmetric: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return int8 codes [..., hidden] of `input` [..., hidden] (bf16, f16 or f32), its scale, and its zero point.

    The scale is f32 [1], the zero point s32 [1]. If symmetric, the zero point is None.
    """
    result, scale = _codes(input, torch.int8), input.new_empty(1, dtype=torch.float32)
    azp = None if symmetric else input.new_empty(1, dtype=torch.int32)
    _ops.dynamic_tensor_scaled_int8_quant.default(result, input, scale, azp)
    return result, scale, azp


def dynamic_per_token_scaled_fp8_quant(input: torch.Tensor, scale_ub: torch.Tensor | None = None) -> Pair:
    """Return float8_e4m3fn codes [..., hidden] of `input` [..., hidden] (bf16, f16 or f32), and row scales f32 [...,
    1].

    `scale_ub`, f32 [1], bounds the rows' largest absolute value.
    """
    result, scale = _codes(input, torch.float8_e4m3fn), _token_scales(input)
    _ops.dynamic_per_token_scaled_fp8_quant.default(result, input, scale, scale_ub)
    return result, scale


def static_scaled_int8_quant(input: torch.Tensor, scale: torch.Tensor, azp: torch.Tensor | None = None) -> torch.Tensor:
    """Return int8 codes [..., hidden] of `input` [..., hidden] (bf16, f16 or f32) by a given scale and zero point.

    `scale` is f32 [1]. `azp` is s32 [1], or None for no zero point.
    """
    result = _codes(input, torch.int8)
    _ops.static_scaled_int8_quant.default(result, input, scale, azp)
    return result


def dynamic_scaled_int8_quant(
    input: torch.Tensor, symmetric: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return int8 codes [..., hidden] of `input` [..., hidden] (bf16, f16 or f32), row scales, and rows' zero points.

    Scales are f32 [..., 1], zero points s32 [..., 1]. If symmetric, the zero points are None.
    """
    result, scale = _codes(input, torch.int8), _token_scales(input)
    azp = None if symmetric else _token_scales(input, torch.int32)
    _ops.dynamic_scaled_int8_quant.default(result, input, scale, azp)
    return result, scale, azp


def dynamic_scaled_int8_quant_row_sums(
    input: torch.Tensor, symmetric: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return dynamic_scaled_int8_quant's codes and scales, the sums of each row's codes, and the rows' zero points.

    Sums are s32 [..., 1]: `a_sums` of scaled_mm_zero_points, which multiplies the zero points of a weight's columns by
    them.
    """
    result, scale, sums = _codes(input, torch.int8), _token_scales(input), _token_scales(input, torch.int32)
    azp = None if symmetric else _token_scales(input, torch.int32)
    _ops.dynamic_scaled_int8_quant_row_sums.default(result, input, scale, sums, azp)
    return result, scale, sums, azp


def per_token_group_fp8_quant(
    input: torch.Tensor,
    group_size: int,
    eps: float = 1e-10,
    scale_ue8m0: bool = False,
    column_major_scales: bool = False,
    tma_aligned_scales: bool = False,
) -> Pair:
    """Return float8_e4m3fn codes [..., hidden] of `input` [..., hidden] (bf16, f16 or f32), and scales of groups.

    Scales are f32 [rows, hidden / group_size], where `group_size` divides hidden. They are powers of two if
    `scale_ue8m0`. They lie M-major if `column_major_scales`. If `tma_aligned_scales` too, each column is at a multiple
    of 4 values. `eps` is the smallest absolute maximum of a group.
    """
    codes = _codes(input, torch.float8_e4m3fn)
    scales = _group_scales(input, parts(size(input, -1), group_size), column_major_scales, tma_aligned_scales)
    limits = (-E4M3_MAX, E4M3_MAX)
    _ops.per_token_group_fp8_quant.default(
        input, codes, scales, group_size, eps, *limits, scale_ue8m0, column_major_scales, tma_aligned_scales
    )
    return codes, scales


def per_token_group_quant_int8(input: torch.Tensor, group_size: int, eps: float = 1e-10) -> Pair:
    """Return int8 codes [..., hidden] of `input` [..., hidden] (bf16, f16 or f32), and scales f32 [rows, hidden /
    group_size]."""
    codes, scales = _codes(input, torch.int8), _group_scales(input, parts(size(input, -1), group_size), False)
    _ops.per_token_group_quant_int8.default(input, codes, scales, group_size, eps, -128.0, 127.0)
    return codes, scales


def per_token_group_quant_int8_azp(
    input: torch.Tensor, group_size: int, column_major_scales: bool = False, tma_aligned_scales: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return int8 codes [..., hidden] of `input` [..., hidden] (bf16, f16 or f32), and scales and zero points of
    groups.

    Scales are f32 and zero points s32, both [rows, hidden / group_size]. Both are laid out as scales of
    per_token_group_fp8_quant.
    """
    codes = _codes(input, torch.int8)
    layout = parts(size(input, -1), group_size), column_major_scales, tma_aligned_scales
    scales, azps = _group_scales(input, *layout), _group_scales(input, *layout, dtype=torch.int32)
    _ops.per_token_group_quant_int8_azp.default(input, codes, scales, azps, group_size)
    return codes, scales, azps


def per_token_group_fp8_quant_packed(input: torch.Tensor, group_size: int, eps: float = 1e-10) -> Pair:
    """Return float8_e4m3fn codes [..., hidden] of `input` [..., hidden] (bf16, f16 or f32), and powers of two as
    scales.

    The scales are s32 [rows, ceil(groups / 4)] with strides (1, rows rounded up to 4). A word has four exponents, the
    first group's in the low byte.
    """
    codes = _codes(input, torch.float8_e4m3fn)
    rows = input.shape[:-1].numel()
    words = -(-parts(size(input, -1), group_size) // 4)
    packed = input.new_empty((words, -(-rows // 4) * 4), dtype=torch.int32).t()[:rows]
    _ops.per_token_group_fp8_quant_packed.default(input, codes, packed, group_size, eps, -E4M3_MAX, E4M3_MAX)
    return codes, packed


def silu_and_mul_per_block_quant(
    input: torch.Tensor,
    group_size: int,
    quant_dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ub: torch.Tensor | None = None,
    is_scale_transposed: bool = False,
) -> Pair:
    """Return codes [..., hidden] of silu(gate) * up, and scales f32 [rows, hidden / group_size].

    `input` is [..., 2 hidden] (bf16 or f16): gate, then up. Codes are float8_e4m3fn or int8. `group_size` is 32, 64 or 128.
    Scales are M-major if transposed. `scale_ub`, f32 [1], bounds the scales themselves, with float8_e4m3fn only.
    """
    codes = _codes(input, quant_dtype, gated=True)
    scales = _group_scales(input, parts(size(input, -1) // 2, group_size), is_scale_transposed)
    _ops.silu_and_mul_per_block_quant.default(codes, input, scales, group_size, scale_ub, is_scale_transposed)
    return codes, scales


def silu_and_mul_quant(input: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return float8_e4m3fn codes [..., hidden] of silu(gate) * up, by a given scale, f32 [1].

    `input` is [..., 2 hidden] (bf16 or f16): gate, then up.
    """
    result = _codes(input, torch.float8_e4m3fn, gated=True)
    _ops.silu_and_mul_quant.default(result, input, scale)
    return result


def silu_and_mul_per_token_quant(
    input: torch.Tensor,
    quant_dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ub: torch.Tensor | None = None,
) -> Pair:
    """Return codes [..., hidden] of silu(gate) * up, and row scales f32 [..., 1].

    `input` is [..., 2 hidden] (bf16 or f16): gate, then up. Codes are float8_e4m3fn or int8. `scale_ub`, f32 [1],
    bounds the rows' largest absolute value, with float8_e4m3fn only.
    """
    result, scale = _codes(input, quant_dtype, gated=True), _token_scales(input)
    _ops.silu_and_mul_per_token_quant.default(result, input, scale, scale_ub)
    return result, scale


def act_and_mul_per_block_quant(
    input: torch.Tensor,
    group_size: int,
    activation: str = "silu",
    quant_dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ub: torch.Tensor | None = None,
    scale_ue8m0: bool = False,
    column_major_scales: bool = False,
    tma_aligned_scales: bool = False,
) -> Pair:
    """Quantise as silu_and_mul_per_block_quant with any activation: "silu", "gelu" (with erf) or "gelu_tanh".

    Scales are powers of two if `scale_ue8m0`. They lie M-major if `column_major_scales`. If `tma_aligned_scales` too,
    each column is at a multiple of 4 values. The op itself reads their layout from the strides of the tensor that it is
    given.
    """
    codes = _codes(input, quant_dtype, gated=True)
    scales = _group_scales(input, parts(size(input, -1) // 2, group_size), column_major_scales, tma_aligned_scales)
    _ops.act_and_mul_per_block_quant.default(codes, input, scales, activation, group_size, scale_ub, scale_ue8m0)
    return codes, scales


def act_and_mul_quant(
    input: torch.Tensor,
    scale: torch.Tensor,
    activation: str = "silu",
    quant_dtype: torch.dtype = torch.float8_e4m3fn,
) -> torch.Tensor:
    """Quantise as silu_and_mul_quant with any activation, to float8_e4m3fn or int8.

    Activations are "silu", "gelu" (with erf) and "gelu_tanh".
    """
    result = _codes(input, quant_dtype, gated=True)
    _ops.act_and_mul_quant.default(result, input, scale, activation)
    return result


def act_and_mul_per_token_quant(
    input: torch.Tensor,
    activation: str = "silu",
    quant_dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ub: torch.Tensor | None = None,
) -> Pair:
    """Quantise as silu_and_mul_per_token_quant with any activation: "silu", "gelu" (with erf) or "gelu_tanh"."""
    result, scale = _codes(input, quant_dtype, gated=True), _token_scales(input)
    _ops.act_and_mul_per_token_quant.default(result, input, scale, activation, scale_ub)
    return result, scale


def rms_norm_dynamic_per_token_quant(
    input: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    quant_dtype: torch.dtype,
    scale_ub: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> Pair:
    """Return codes [..., hidden] of the RMS norm of `input` times `weight` [hidden], and row scales f32 [..., 1].

    `input` is [..., hidden] (bf16, f16 or f32). Codes are float8_e4m3fn or int8. It first adds a `residual` of input's
    shape, and writes the sum into it.
    """
    result, scale = _codes(input, quant_dtype), _token_scales(input)
    _ops.rms_norm_dynamic_per_token_quant.default(result, input, weight, scale, epsilon, scale_ub, residual)
    return result, scale


def rms_norm_per_block_quant(
    input: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    quant_dtype: torch.dtype,
    group_size: int,
    scale_ub: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    is_scale_transposed: bool = False,
) -> Pair:
    """Quantise as rms_norm_dynamic_per_token_quant, with scales f32 [rows, hidden / group_size], M-major if transposed.

    `group_size` is 32, 64 or 128.
    """
    result = _codes(input, quant_dtype)
    scales = _group_scales(input, parts(size(input, -1), group_size), is_scale_transposed)
    _ops.rms_norm_per_block_quant.default(
        result, input, weight, scales, epsilon, scale_ub, residual, group_size, is_scale_transposed
    )
    return result, scales


def rms_norm_static_fp8_quant(
    input: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """Return float8_e4m3fn codes [..., hidden] of the RMS norm of `input` times `weight` [hidden], by a given scale.

    `input` is [..., hidden] (bf16, f16 or f32), `scale` f32 [1].
    """
    result = _codes(input, torch.float8_e4m3fn)
    _ops.rms_norm_static_fp8_quant.default(result, input, weight, scale, epsilon)
    return result


def fused_add_rms_norm_static_fp8_quant(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """Quantise as rms_norm_static_fp8_quant the sum input + residual. It replaces `residual` [..., hidden], rounded."""
    result = _codes(input, torch.float8_e4m3fn)
    _ops.fused_add_rms_norm_static_fp8_quant.default(result, input, residual, weight, scale, epsilon)
    return result
