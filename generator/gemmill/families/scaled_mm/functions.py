"""The GEMM ops as functions that allocate what they return."""

import torch

_SCALED_MM = torch.ops.gemmill.cutlass_scaled_mm.default
_SCALED_MM_AZP = torch.ops.gemmill.cutlass_scaled_mm_azp.default


def cutlass_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """out[M, N] = a_scales * (b_scales * (a @ b)) + bias, as vLLM's op of this name.

    a: [M, K] row-major, b: [K, N] column-major, both float8_e4m3fn or both int8; scales float32: one value, or [M, 1]
    for a and [1, N] for b, or in groups along K of g = 128 or 64: [M, K/g] for a with [K/g, N/g] or [K/g, N] for b, any
    strides of which one is 1; bias [N] of out_dtype; out_dtype bfloat16 or float16. Beyond vLLM's: both bfloat16 or both
    float16, out_dtype the same, scales not in groups; with scales of 1 that is the plain product. Raises RuntimeError with
    one sentence where the arguments do not fit.
    """
    out = a.new_empty((a.shape[0], b.shape[-1]), dtype=out_dtype)
    _SCALED_MM(out, a, b, a_scales, b_scales, bias)
    return out


def cutlass_scaled_mm_azp(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    out_dtype: torch.dtype,
    azp_adj: torch.Tensor,
    azp: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """out[M, N] = a_scales * (b_scales * (a @ b - zero points)) + bias for int8 a and b, as vLLM's op of this name.

    azp_adj: int32 [N], the column sums of b, times a's zero point where that is one for the tensor (then azp is None);
    azp: int32 [M], a zero point for each row, multiplied by azp_adj here. The rest as for cutlass_scaled_mm.
    """
    out = a.new_empty((a.shape[0], b.shape[-1]), dtype=out_dtype)
    _SCALED_MM_AZP(out, a, b, a_scales, b_scales, azp_adj, azp, bias)
    return out
