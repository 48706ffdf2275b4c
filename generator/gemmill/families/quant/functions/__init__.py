"""The quantisation ops as functions that allocate what they return. Each raises RuntimeError with one sentence where its
arguments do not fit; arithmetic is that of gemmill.families.quant.reference."""

import torch

from gemmill.families.quant.functions import blocks
from gemmill.families.quant.functions.blocks import *  # noqa: F403 (what it declares public)

__all__ = [
    "act_and_mul_per_block_quant",
    "act_and_mul_per_token_quant",
    "act_and_mul_quant",
    "dynamic_per_token_scaled_fp8_quant",
    "dynamic_scaled_fp8_quant",
    "dynamic_scaled_int8_quant",
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
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2 if gated else x.shape[-1]), dtype=dtype)


def _token_scales(x: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], 1), dtype=dtype)


def _group_scales(
    x: torch.Tensor, groups: int, transposed: bool, aligned: bool = False, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """[rows, groups], row-major, or M-major with columns at multiples of `rows`, rounded up to 4 if aligned."""
    rows = x.numel() // x.shape[-1] if x.shape[-1] else x.shape[:-1].numel()
    if not transposed:
        return x.new_empty((rows, groups), dtype=dtype)
    step = -(-rows // 4) * 4 if aligned else rows
    return x.new_empty((groups, step), dtype=dtype).t()[:rows]


def static_scaled_fp8_quant(
    input: torch.Tensor, scale: torch.Tensor, group_shape: tuple[int, int] | None = None
) -> torch.Tensor:
    """float8_e4m3fn codes [..., hidden] of input [..., hidden] (bf16, f16 or f32) by given scales, f32.

    group_shape says what the scales are. They are one value for None, [rows] for (1, -1), [hidden] for (-1, 1), and [rows / m, hidden
    / n] for (m, n)."""
    result = _codes(input, torch.float8_e4m3fn)
    _ops.static_scaled_fp8_quant.default(result, input, scale, group_shape)
    return result


def dynamic_scaled_fp8_quant(input: torch.Tensor) -> Pair:
    """float8_e4m3fn codes of input [..., hidden] (bf16, f16 or f32), and its one scale, f32 [1]."""
    result, scale = _codes(input, torch.float8_e4m3fn), input.new_empty(1, dtype=torch.float32)
    _ops.dynamic_scaled_fp8_quant.default(result, input, scale)
    return result, scale


def dynamic_tensor_scaled_int8_quant(
    input: torch.Tensor, symmetric: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """int8 codes of input [..., hidden] (bf16, f16 or f32), one scale for the tensor, f32 [1], and a zero point, s32
    [1]. That is None if symmetric."""
    result, scale = _codes(input, torch.int8), input.new_empty(1, dtype=torch.float32)
    azp = None if symmetric else input.new_empty(1, dtype=torch.int32)
    _ops.dynamic_tensor_scaled_int8_quant.default(result, input, scale, azp)
    return result, scale, azp


def dynamic_per_token_scaled_fp8_quant(input: torch.Tensor, scale_ub: torch.Tensor | None = None) -> Pair:
    """float8_e4m3fn codes of input [..., hidden] (bf16, f16 or f32), and a scale for each row, f32 [..., 1]. scale_ub, f32
    [1], bounds the rows' absolute maximum."""
    result, scale = _codes(input, torch.float8_e4m3fn), _token_scales(input)
    _ops.dynamic_per_token_scaled_fp8_quant.default(result, input, scale, scale_ub)
    return result, scale


def static_scaled_int8_quant(input: torch.Tensor, scale: torch.Tensor, azp: torch.Tensor | None = None) -> torch.Tensor:
    """int8 codes of input [..., hidden] (bf16, f16 or f32) by a given scale, f32 [1], and zero point, s32 [1], if any."""
    result = _codes(input, torch.int8)
    _ops.static_scaled_int8_quant.default(result, input, scale, azp)
    return result


def dynamic_scaled_int8_quant(
    input: torch.Tensor, symmetric: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """int8 codes of input [..., hidden] (bf16, f16 or f32), and for each row a scale, f32 [..., 1], and a
    zero point, s32 [..., 1]. That is None if symmetric."""
    result, scale = _codes(input, torch.int8), _token_scales(input)
    azp = None if symmetric else _token_scales(input, torch.int32)
    _ops.dynamic_scaled_int8_quant.default(result, input, scale, azp)
    return result, scale, azp


def per_token_group_fp8_quant(
    input: torch.Tensor,
    group_size: int,
    eps: float = 1e-10,
    scale_ue8m0: bool = False,
    column_major_scales: bool = False,
    tma_aligned_scales: bool = False,
) -> Pair:
    """float8_e4m3fn codes of input [..., hidden] (bf16, f16 or f32), and scales f32 [rows, hidden / group_size], group_size
    32, 64 or 128. Scales are powers of two if scale_ue8m0; they lie M-major if column_major_scales, each column at a
    multiple of 4 values if tma_aligned_scales too."""
    codes = _codes(input, torch.float8_e4m3fn)
    scales = _group_scales(input, input.shape[-1] // group_size, column_major_scales, tma_aligned_scales)
    limits = (-E4M3_MAX, E4M3_MAX)
    _ops.per_token_group_fp8_quant.default(
        input, codes, scales, group_size, eps, *limits, scale_ue8m0, column_major_scales, tma_aligned_scales
    )
    return codes, scales


def per_token_group_quant_int8(input: torch.Tensor, group_size: int, eps: float = 1e-10) -> Pair:
    """int8 codes of input [..., hidden] (bf16, f16 or f32), and scales f32 [rows, hidden / group_size]."""
    codes, scales = _codes(input, torch.int8), _group_scales(input, input.shape[-1] // group_size, False)
    _ops.per_token_group_quant_int8.default(input, codes, scales, group_size, eps, -128.0, 127.0)
    return codes, scales


def per_token_group_quant_int8_azp(
    input: torch.Tensor, group_size: int, column_major_scales: bool = False, tma_aligned_scales: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """int8 codes of input [..., hidden] (bf16, f16 or f32), scales f32 and zero points s32 [rows, hidden / group_size], both
    laid out as scales of per_token_group_fp8_quant."""
    codes = _codes(input, torch.int8)
    layout = input.shape[-1] // group_size, column_major_scales, tma_aligned_scales
    scales, azps = _group_scales(input, *layout), _group_scales(input, *layout, dtype=torch.int32)
    _ops.per_token_group_quant_int8_azp.default(input, codes, scales, azps, group_size)
    return codes, scales, azps


def per_token_group_fp8_quant_packed(input: torch.Tensor, group_size: int, eps: float = 1e-10) -> Pair:
    """float8_e4m3fn codes of input [..., hidden] (bf16, f16 or f32), and scales that are powers of two.

    The scales are s32 [rows, ceil(groups / 4)] with strides (1, rows rounded up to 4). A word has four exponents, the first
    group's in the low byte."""
    codes = _codes(input, torch.float8_e4m3fn)
    rows = input.shape[:-1].numel()
    words = -(-(input.shape[-1] // group_size) // 4)
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
    """Codes (float8_e4m3fn or int8) [..., hidden] of silu(gate) * up, and scales f32 [rows, hidden / group_size].

    The input [..., 2 hidden] (bf16 or f16) is gate, then up. group_size is 64 or 128; scales are M-major if transposed. scale_ub,
    f32 [1], bounds the scales themselves; with float8_e4m3fn only."""
    codes = _codes(input, quant_dtype, gated=True)
    scales = _group_scales(input, input.shape[-1] // 2 // group_size, is_scale_transposed)
    _ops.silu_and_mul_per_block_quant.default(codes, input, scales, group_size, scale_ub, is_scale_transposed)
    return codes, scales


def silu_and_mul_quant(input: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float8_e4m3fn codes [..., hidden] of silu(gate) * up of input [..., 2 hidden] (bf16 or f16), by a given scale, f32 [1]."""
    result = _codes(input, torch.float8_e4m3fn, gated=True)
    _ops.silu_and_mul_quant.default(result, input, scale)
    return result


def silu_and_mul_per_token_quant(
    input: torch.Tensor,
    quant_dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ub: torch.Tensor | None = None,
) -> Pair:
    """Codes (float8_e4m3fn or int8) [..., hidden] of silu(gate) * up of input [..., 2 hidden] (bf16 or f16), and a scale for
    each row, f32 [..., 1]. scale_ub, f32 [1], bounds the rows' absolute maximum; with float8_e4m3fn only."""
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
    """As silu_and_mul_per_block_quant with any activation ("silu"; "gelu", with erf; "gelu_tanh"). Scales are powers of two
    if scale_ue8m0; they lie M-major if column_major_scales, each column at a multiple of 4 values if tma_aligned_scales
    too. The op itself reads their layout from the strides of the tensor that it is given."""
    codes = _codes(input, quant_dtype, gated=True)
    scales = _group_scales(input, input.shape[-1] // 2 // group_size, column_major_scales, tma_aligned_scales)
    _ops.act_and_mul_per_block_quant.default(codes, input, scales, activation, group_size, scale_ub, scale_ue8m0)
    return codes, scales


def act_and_mul_quant(
    input: torch.Tensor,
    scale: torch.Tensor,
    activation: str = "silu",
    quant_dtype: torch.dtype = torch.float8_e4m3fn,
) -> torch.Tensor:
    """As silu_and_mul_quant with any activation ("silu"; "gelu", with erf; "gelu_tanh"), to float8_e4m3fn or int8."""
    result = _codes(input, quant_dtype, gated=True)
    _ops.act_and_mul_quant.default(result, input, scale, activation)
    return result


def act_and_mul_per_token_quant(
    input: torch.Tensor,
    activation: str = "silu",
    quant_dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ub: torch.Tensor | None = None,
) -> Pair:
    """As silu_and_mul_per_token_quant with any activation ("silu"; "gelu", with erf; "gelu_tanh")."""
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
    """Codes (float8_e4m3fn or int8) of the RMS norm of input [..., hidden] (bf16, f16 or f32) times weight [hidden], and row
    scales, f32 [..., 1]. A residual of input's shape is added before, and replaced by the sum."""
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
    """As rms_norm_dynamic_per_token_quant, with scales f32 [rows, hidden / group_size], M-major if transposed; group_size 64
    or 128."""
    result = _codes(input, quant_dtype)
    scales = _group_scales(input, input.shape[-1] // group_size, is_scale_transposed)
    _ops.rms_norm_per_block_quant.default(
        result, input, weight, scales, epsilon, scale_ub, residual, group_size, is_scale_transposed
    )
    return result, scales


def rms_norm_static_fp8_quant(
    input: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """float8_e4m3fn codes of the RMS norm of input [..., hidden] (bf16 or f16) times weight [hidden], by a given scale, f32 [1]."""
    result = _codes(input, torch.float8_e4m3fn)
    _ops.rms_norm_static_fp8_quant.default(result, input, weight, scale, epsilon)
    return result


def fused_add_rms_norm_static_fp8_quant(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """As rms_norm_static_fp8_quant of input + residual, which replaces the residual [..., hidden], rounded."""
    result = _codes(input, torch.float8_e4m3fn)
    _ops.fused_add_rms_norm_static_fp8_quant.default(result, input, residual, weight, scale, epsilon)
    return result
