"""The GEMM ops as functions that allocate what they return. Their arithmetic is that of
gemmill.families.scaled_mm.reference."""

import torch

from gemmill.runtime.ops import overload
from gemmill.runtime.sizes import size

__all__ = ["cutlass_scaled_mm", "cutlass_scaled_mm_azp"]

_SCALED_MM, _SCALED_MM_AZP = overload("cutlass_scaled_mm"), overload("cutlass_scaled_mm_azp")


def cutlass_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return out[M, N] = a_scales * (b_scales * (a @ b)) + bias, as vLLM's op of this name.

    `a` is [M, K], row-major, and `b` [K, N], column-major. Both are float8_e4m3fn, or both int8. `out_dtype` is
    bfloat16 or float16, and `bias` [N] of out_dtype.

    Scales are float32: one value, or [M, 1] for a and [1, N] for b. Or they are in groups along K of g = 128 or 64.
    Then a has [M, K/g], and b [K/g, N/g] or [K/g, N]. Groups have any strides of which one is 1.

    Beyond vLLM's op, a and b may be both bfloat16 or both float16, with out_dtype the same and scales not in groups.
    With scales of 1 that is the plain product.

    Raises RuntimeError with one sentence where the arguments do not fit.
    """
    out = a.new_empty((size(a, 0), size(b, -1)), dtype=out_dtype)
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
    """Return out[M, N] = a_scales * (b_scales * (a @ b - zero points)) + bias, as vLLM's op of this name.

    `a` and `b` are int8. `azp_adj`, int32 [N], has the column sums of b. With one zero point for the tensor, they are
    multiplied by it already, and `azp` is None. Else `azp`, int32 [M], has a zero point for each row, by which azp_adj
    is multiplied here. The rest is as for cutlass_scaled_mm.
    """
    out = a.new_empty((size(a, 0), size(b, -1)), dtype=out_dtype)
    _SCALED_MM_AZP(out, a, b, a_scales, b_scales, azp_adj, azp, bias)
    return out
