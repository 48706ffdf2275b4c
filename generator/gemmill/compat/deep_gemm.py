"""DeepGEMM's grouped GEMMs, by gemmill's ops: its names and arguments; of FP8 with scales in groups as float32.

Scales may lie as DeepGEMM wants them, M-major, or in rows. `recipe`, `compiled_dims` and `disable_ue8m0_cast` say nothing that
Hopper's kernels depend on, and are not read; scales that are not float32 are refused.
"""

from typing import Any

import torch
from torch import Tensor

import gemmill  # noqa: F401 (defines the ops)

__all__ = [
    "fp8_m_grouped_gemm_nt_masked",
    "m_grouped_bf16_gemm_nt_contiguous",
    "m_grouped_bf16_gemm_nt_masked",
    "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nt_masked",
]
Scaled = tuple[Tensor, Tensor]
"""Codes and their scales."""


def m_grouped_fp8_gemm_nt_contiguous(
    a: Scaled,
    b: Scaled,
    d: Tensor,
    grouped_layout: Tensor,
    recipe: Any = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    *,
    alignment: int = 128,
) -> None:
    """d[i] = a[i] b[e]^T, e being grouped_layout[i]: int32 [M], -1 for rows of nobody, which are left as they are.

    a is float8_e4m3fn [M, K] with scales [M, K/128], b [E, N, K] with scales [E, N/128, K/128]. Rows of an expert lie beside one
    another, as DeepGEMM asks too; they may begin anywhere. E is 256 at most. Raises RuntimeError as grouped_mm does.

    With use_psum_layout grouped_layout is int32 [E]: where the rows of each expert end. They begin at the first multiple of
    `alignment` behind those of the expert before, which DeepGEMM knows by its own get_mk_alignment_for_contiguous_layout.
    """
    (codes, a_scales), (weights, b_scales) = a, b
    if use_psum_layout:
        after = (grouped_layout[:-1] + alignment - 1) // alignment * alignment
        return by_segments(d, a, b, torch.cat((torch.zeros_like(grouped_layout[:1]), after)), grouped_layout)
    offsets = _segments(grouped_layout, weights.shape[0])
    torch.ops.gemmill.grouped_mm.default(d, codes, weights, a_scales, b_scales, *offsets)
    return None


def m_grouped_bf16_gemm_nt_contiguous(
    a: Tensor, b: Tensor, d: Tensor, grouped_layout: Tensor, compiled_dims: str = "nk"
) -> None:
    """The same of bfloat16, without scales."""
    torch.ops.gemmill.grouped_mm.default(d, a, b, None, None, *_segments(grouped_layout, b.shape[0]))


def _segments(grouped_layout: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """The offsets and the map of rows that say whose they are."""
    rows = torch.arange(len(grouped_layout), device=grouped_layout.device, dtype=torch.int64)
    known = (grouped_layout >= 0) & (grouped_layout < experts)  # what nobody wrote may hold any number
    owner = torch.where(known, grouped_layout, experts).long()
    begins = torch.full((experts + 1,), len(rows), device=rows.device, dtype=torch.int64).scatter_reduce_(
        0, owner, rows, "amin"
    )
    counts = torch.zeros_like(begins).scatter_add_(0, owner, torch.ones_like(rows))
    return _apart(begins[:-1], (begins + counts)[:-1])


def by_segments(d: Tensor, a: Scaled, b: Scaled, begins: Tensor, ends: Tensor) -> None:
    """The same with rows of expert e from begins[e] to ends[e], int32 [E] both; d's other rows are left as they are."""
    (codes, a_scales), (weights, b_scales) = a, b
    torch.ops.gemmill.grouped_mm.default(d, codes, weights, a_scales, b_scales, *_apart(begins, ends))


def _apart(begins: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """The offsets and the map of segments that need not follow one another. Behind each are rows of nobody."""
    owners = torch.arange(2 * len(begins) - 1, dtype=torch.int32, device=begins.device)
    return torch.stack((begins, ends), dim=1).flatten(), torch.where(owners % 2 == 0, owners // 2, -1)


def m_grouped_fp8_gemm_nt_masked(
    a: Scaled,
    b: Scaled,
    d: Tensor,
    masked_m: Tensor,
    expected_m: int,
    recipe: Any = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
) -> None:
    """d[e, i] = a[e, i] b[e]^T for the first masked_m[e] rows, int32 [E]; d's other rows are left as they are.

    a is float8_e4m3fn [E, max_m, K] with scales [E, max_m, K/128]. Those that have no stride common to all rows are copied.
    """
    (codes, a_scales), (weights, b_scales) = a, b
    if a_scales.shape[0] > 1 and a_scales.stride(0) != a_scales.shape[1] * a_scales.stride(1):
        a_scales = a_scales.contiguous()
    operands = d, codes, weights, a_scales, b_scales, masked_m
    torch.ops.gemmill.grouped_mm_masked.default(*operands, None, expected_m)


def m_grouped_bf16_gemm_nt_masked(
    a: Tensor, b: Tensor, d: Tensor, masked_m: Tensor, expected_m: int, compiled_dims: str = "nk"
) -> None:
    """The same of bfloat16, without scales."""
    torch.ops.gemmill.grouped_mm_masked.default(d, a, b, None, None, masked_m, None, expected_m)


fp8_m_grouped_gemm_nt_masked = m_grouped_fp8_gemm_nt_masked
"""The name that DeepGEMM had for it before 2.8."""
