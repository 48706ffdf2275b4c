"""The GEMM ops as functions that allocate their results. Their arithmetic is that of
gemmill.families.scaled_mm.reference.
"""

import torch

from gemmill.formats.ue8m0_scales import Scales, as_float32
from gemmill.runtime.ops import overload
from gemmill.runtime.sizes import size
from gemmill.vocab import GROUP_SIZES

__all__ = ["cutlass_scaled_mm", "cutlass_scaled_mm_azp", "scaled_mm_zero_points"]

_SCALED_MM, _SCALED_MM_AZP = overload("cutlass_scaled_mm"), overload("cutlass_scaled_mm_azp")
_ZERO_POINTS = overload("scaled_mm_zero_points")


def cutlass_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    *,
    check: bool = False,
) -> torch.Tensor:
    """Return out[M, N] = a_scales * (b_scales * (a @ b)) + bias, as vLLM's op of this name.

    `a` is [M, K], row-major, and `b` [K, N], column-major. Both are float8_e4m3fn, or both int8. `out_dtype` is
    bfloat16 or float16, and `bias` [N] of out_dtype.

    Scales are float32: one value, or [M, 1] for a and [1, N] for b. Or they are in groups along K of g = 128, 64 or 32.
    Then a has [M, K/g], and b [K/g, N/g] or [K/g, N]. Groups have any strides of which one is 1.

    Scales may be ue8m0 bytes too, uint8 or float8_e8m0fnu, or int32 words of four bytes along K as DeepSeek packs them:
    [M, K/g/4] for a, and [K/g/4, N/g] or [K/g/4, N] for b, rounded up. torch makes them float32 at each call, so those
    of weights are better made once, by .float(). Byte 255 is NaN; with `check` it raises, which waits for the device.

    Beyond vLLM's op, a and b may be both bfloat16 or both float16, with out_dtype the same and scales not in groups.
    With scales of 1 that is the plain product.

    Raises RuntimeError with one sentence where the arguments do not fit.
    """
    out = a.new_empty((size(a, 0), size(b, -1)), dtype=out_dtype)
    if not a_scales.dtype == b_scales.dtype == torch.float32:
        of_a = Scales(name="a_scales", values=a_scales, along_k=-1, rows=size(a, 0), k=size(a, -1))
        of_b = Scales(name="b_scales", values=b_scales, along_k=-2, rows=size(b, -1), k=size(a, -1))
        a_scales, b_scales = as_float32("cutlass_scaled_mm", of_a, of_b, GROUP_SIZES, check=check)
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
    its multiples already, and `azp` is None. Else `azp`, int32 [M], has a zero point for each row, which multiplies
    azp_adj here. The rest is as for cutlass_scaled_mm.
    """
    out = a.new_empty((size(a, 0), size(b, -1)), dtype=out_dtype)
    _SCALED_MM_AZP(out, a, b, a_scales, b_scales, azp_adj, azp, bias)
    return out


def scaled_mm_zero_points(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    out_dtype: torch.dtype,
    b_zp: torch.Tensor,
    a_sums: torch.Tensor | None = None,
    azp_adj: torch.Tensor | None = None,
    azp: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return out[M, N] = a_scales * (b_scales * (a @ b - azp * azp_adj - a_sums * b_zp)) + bias.

    `a` [M, K] and `b` [K, N] are int8, with layouts and scales as for cutlass_scaled_mm, in no groups. `b_zp`, int32,
    has the zero points of b's columns: [N], or one value. `a_sums`, int32 [M], has the sums of a's rows; where they are
    None, torch computes them here.

    Of an a with zero points, `azp_adj`, int32 [N], is `b.sum(0) - K * b_zp`. With one zero point for the tensor, it is
    multiplied by that already, and `azp` is None. Else `azp`, int32 [M], has one for each row. The part in int32 is
    computed modulo 2^32, which is exact where sum over k of (a - azp) (b - b_zp) fits: up to K = 33,025 always.

    Raises RuntimeError with one sentence where the arguments do not fit.
    """
    out = a.new_empty((size(a, 0), size(b, -1)), dtype=out_dtype)
    sums = a.sum(dim=1, dtype=torch.int32) if a_sums is None else a_sums
    _ZERO_POINTS(out, a, b, a_scales, b_scales, sums, b_zp, azp_adj, azp, bias)
    return out
