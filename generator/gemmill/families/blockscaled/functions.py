"""The ops as functions that allocate their results."""

from typing import Any

import torch

from gemmill.runtime.ops import overload
from gemmill.runtime.sizes import size

__all__ = [
    "cutlass_scaled_fp4_mm",
    "cutlass_scaled_mxfp4_mm",
    "cutlass_scaled_mxfp4_mxfp8_mm",
    "cutlass_scaled_mxfp6_mxfp8_mm",
    "cutlass_scaled_mxfp8_mm",
    "cutlass_scaled_nvfp4_mm",
    "fp4_weight_mm",
    "mxfp4_fp8_mm",
    "nvfp4_fp8_mm_rounded",
]

_MXFP4_FP8_MM, _NVFP4_FP8_MM_ROUNDED = overload("mxfp4_fp8_mm"), overload("nvfp4_fp8_mm_rounded")
_FP4_WEIGHT_MM, _FP4_MM = overload("fp4_weight_mm"), overload("cutlass_scaled_fp4_mm")
_NVFP4_MM, _MXFP4_MM = overload("cutlass_scaled_nvfp4_mm"), overload("cutlass_scaled_mxfp4_mm")
_MXFP8_MM, _MXFP6_MXFP8_MM = overload("cutlass_scaled_mxfp8_mm"), overload("cutlass_scaled_mxfp6_mxfp8_mm")
_MXFP4_MXFP8_MM = overload("cutlass_scaled_mxfp4_mxfp8_mm")


def fp4_weight_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    b_sf: torch.Tensor,
    alpha: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    format: str,
    prepacked: bool = True,
) -> torch.Tensor:
    """out[M, N] = alpha * sum over k of a[m, k] b[n, k] + bias[n], with block-scaled weights b; out has a's dtype.

    a is [M, K], bfloat16 or float16. bias is [N], of a's dtype. alpha is float32, one value: 1 / the weights' global
    scale. `format` is "nvfp4", "mxfp4", "mxfp6" or "mxfp8". gemmill.quantize makes packed weights. With bfloat16, those
    of nvfp4 and mxfp4 are `blocks` and, as b_sf, `base` of fp4_blocks.to_blocks. All others are rows and base of
    packed_rows.to_rows. Weights of a checkpoint are [N, bytes of K codes], uint8, with plain scales [N, K / group]. The
    product of code and scale is exact.

    Raises RuntimeError with one sentence where the arguments do not fit.
    """
    out = a.new_empty((size(a, 0), size(b_sf, 0)))
    _FP4_WEIGHT_MM(out, a, b, b_sf, alpha, bias, format, prepacked)
    return out


def mxfp4_fp8_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    b_base: torch.Tensor,
    a_scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """out[M, N] = sum over k of (a_scales a)[m, k] (b_base b)[n, k] + bias[n], with mxfp4 weights on the FP8 tensor core.

    a is [M, K], float8_e4m3fn. bias is [N], of out_dtype, which is bfloat16 or float16. b and b_base are `blocks` and `base`
    of gemmill.quantize.folded_blocks.to_folded_blocks, which takes weights that `prepack` folded for this op. b_base [N] goes
    with a_scales [M, 1]; b_base [N, K / 128] with a_scales [M, K / 128], rounded up. All scales are float32. Folding is exact,
    or refused by `prepack`.

    Raises RuntimeError with one sentence where the arguments do not fit.
    """
    return _folded(_MXFP4_FP8_MM, a, b, b_base, a_scales, bias, out_dtype)


def nvfp4_fp8_mm_rounded(
    a: torch.Tensor,
    b: torch.Tensor,
    b_base: torch.Tensor,
    a_scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """mxfp4_fp8_mm of nvfp4 weights, with products of code and scale rounded to e4m3.

    The report of `prepack` has the error that this adds. b_base is [N], with the global scale in it, and a_scales is [M, 1].
    Raises RuntimeError with one sentence where the arguments do not fit.
    """
    return _folded(_NVFP4_FP8_MM_ROUNDED, a, b, b_base, a_scales, bias, out_dtype)


def cutlass_scaled_nvfp4_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """out[M, N] = alpha * sum over k of (sf_a a)[m, k] (sf_b b)[n, k] + bias[n], as LightX2V's function of this name.

    mat_a is [M, K / 2] and mat_b [N, K / 2], uint8: two e2m1 codes a byte. Scales are ue4m3 in the swizzled layout
    (docs/formats.md), one for each 16 codes. alpha is float32, one value: 1 / (global scale of a * that of b). out_dtype is
    bfloat16 or float16. Raises RuntimeError with one sentence where the arguments do not fit.
    """
    return _paired(_NVFP4_MM, mat_a, mat_b, scales_a, scales_b, alpha, bias, out_dtype)


def cutlass_scaled_mxfp4_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """cutlass_scaled_nvfp4_mm of mxfp4 operands: scales are ue8m0, uint8, one for each 32 codes.

    Raises RuntimeError with one sentence where the arguments do not fit.
    """
    return _paired(_MXFP4_MM, mat_a, mat_b, scales_a, scales_b, alpha, bias, out_dtype)


def cutlass_scaled_mxfp8_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """cutlass_scaled_mxfp4_mm of mxfp8 operands: mat_a [M, K] and mat_b [N, K] are float8_e4m3fn, or its bytes.

    Raises RuntimeError with one sentence where the arguments do not fit.
    """
    return _paired(_MXFP8_MM, mat_a, mat_b, scales_a, scales_b, alpha, bias, out_dtype)


def cutlass_scaled_mxfp6_mxfp8_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """cutlass_scaled_mxfp8_mm of mxfp8 activations and mxfp6 weights: mat_b is [N, 3 K / 4] uint8, four e3m2 codes in three
    bytes.

    Raises RuntimeError with one sentence where the arguments do not fit.
    """
    return _paired(_MXFP6_MXFP8_MM, mat_a, mat_b, scales_a, scales_b, alpha, bias, out_dtype)


def cutlass_scaled_mxfp4_mxfp8_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """cutlass_scaled_mxfp8_mm of mxfp8 activations and mxfp4 weights: mat_b is [N, K / 2] uint8, two e2m1 codes a byte.

    Raises RuntimeError with one sentence where the arguments do not fit.
    """
    return _paired(_MXFP4_MXFP8_MM, mat_a, mat_b, scales_a, scales_b, alpha, bias, out_dtype)


def cutlass_scaled_fp4_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    block_scale_a: torch.Tensor,
    block_scale_b: torch.Tensor,
    alpha: torch.Tensor,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """cutlass_scaled_nvfp4_mm without a bias, as vLLM's function of this name.

    Raises RuntimeError with one sentence where the arguments do not fit.
    """
    return _paired(_FP4_MM, a, b, block_scale_a, block_scale_b, alpha, None, out_dtype)


def _folded(
    op: Any,
    a: torch.Tensor,
    b: torch.Tensor,
    b_base: torch.Tensor,
    a_scales: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    out = a.new_empty((size(a, 0), size(b_base, 0)), dtype=out_dtype)
    op(out, a, b, b_base, a_scales, bias)
    return out


def _paired(
    op: Any,
    a: torch.Tensor,
    b: torch.Tensor,
    a_sf: torch.Tensor,
    b_sf: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    out = a.new_empty((size(a, 0), size(b, 0)), dtype=out_dtype)
    op(out, a, b, a_sf, b_sf, alpha, *(() if op is _FP4_MM else (bias,)))
    return out
