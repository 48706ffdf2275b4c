"""DeepGEMM's grouped GEMMs, by gemmill's grouped_mm and grouped_fp4_mm.

Hopper's kernels do not depend on `compiled_dims` and `disable_ue8m0_cast`, which the functions ignore. They refuse
`alpha` and `epilogue`, which DeepGEMM has since 2.8, unless they are None. All functions raise RuntimeError, in a
sentence, for unsupported arguments, and as grouped_mm does, before they write anything.
"""

from typing import Any

import torch
from torch import Tensor

import gemmill  # noqa: F401 (defines the ops)
from gemmill.compat.deep_gemm.operands import (
    Scaled,
    check_endings,
    in_rows,
    packed_fp4,
    pair_of,
    widened,
)
from gemmill.compat.deep_gemm.rows import check_layout, segments, zero_padding
from gemmill.compat.deep_gemm.scales import BLOCK, ROW, Recipe, Recipe2, check_offered, f32_scales, groups_of
from gemmill.compat.segments import apart

_FP8, _BF16 = "m_grouped_fp8_fp4_gemm_{}", "m_grouped_bf16_gemm_{}"


def m_grouped_fp8_fp4_gemm_nt_contiguous(
    a: Scaled,
    b: Scaled,
    d: Tensor,
    grouped_layout: Tensor,
    recipe: Recipe | None = None,
    recipe_a: Recipe2 | None = None,
    recipe_b: Recipe2 | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
    epilogue: Any = None,
    *,
    alignment: int | None = None,
) -> None:
    """d[i] = a[i] b[e]^T, e being grouped_layout[i]: int32 [M], -1 for rows of nobody. d is bfloat16 [M, N].

    a is float8_e4m3fn [M, K] with scales of 1 x 128, b [E, N, K] with scales of 128 x 128: float32, M-major as DeepGEMM
    has them or in rows, or int32 of four ue8m0 bytes. Rows of an expert are contiguous, and may begin anywhere. E is
    256 at most.

    b may be int8 [E, N, K / 2] of 4-bit codes, with scales of 1 x 32 or 1 x 128 in powers of two. recipe_a is then (1,
    32) or (1, 128). Their first call packs weights for gemmill's kernels, and the copy stays. Each call upcasts rows of
    a to bfloat16, which is exact where their scales are powers of two.

    With use_psum_layout grouped_layout is int32 [E]: where the rows of each expert end. They begin at the first multiple of `alignment`
    behind those of the expert before, or of get_mk_alignment_for_contiguous_layout where it is None. DeepGEMM has no such argument.

    With ensure_zero_padding rows of nobody become zeros: with use_psum_layout those up to the next multiple, else all.
    It leaves other rows of nobody as they are, and ignores expected_m_for_psum_layout.
    """
    given = grouped_layout, use_psum_layout, expected_m_for_psum_layout, alignment
    check_endings(_FP8.format("nt_contiguous"), None, epilogue)
    _contiguous("nt_contiguous", a, b, d, *given, ensure_zero_padding, (recipe, recipe_a, recipe_b))


def m_grouped_fp8_fp4_gemm_nn_contiguous(
    a: Scaled,
    b: Scaled,
    d: Tensor,
    grouped_layout: Tensor,
    recipe: Recipe | None = None,
    recipe_a: Recipe2 | None = None,
    recipe_b: Recipe2 | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    epilogue: Any = None,
) -> None:
    """The same of b [E, K, N] with scales [E, K / 128, N / 128]. Each call copies it; it refuses 4-bit codes."""
    check_endings(_FP8.format("nn_contiguous"), None, epilogue)
    turned = (b[0].transpose(-1, -2), b[1].transpose(-1, -2)) if isinstance(b, tuple) else b
    given = grouped_layout, use_psum_layout, None, None
    _contiguous("nn_contiguous", a, turned, d, *given, ensure_zero_padding, (recipe, recipe_a, recipe_b))


def _contiguous(
    form: str,
    a: Scaled,
    b: Scaled,
    d: Tensor,
    layout: Tensor,
    by_ends: bool,
    expected_m: int | None,
    alignment: int | None,
    zeros: bool,
    recipes: tuple[Recipe | None, Recipe2 | None, Recipe2 | None],
) -> None:
    name = _FP8.format(form)
    codes, a_scales, _ = pair_of(name, "a", a, 2)
    weights, b_scales, is_fp4 = pair_of(name, "b", b, 3)
    of_a, of_b = groups_of(name, b_scales, *recipes)
    experts = len(weights)
    check_layout(name, layout, len(codes), experts, by_ends, expected_m)
    if is_fp4:
        packed = packed_fp4(name, weights, b_scales, of_b)
        x = widened(name, codes, a_scales, of_a)
        rows = segments(layout, experts, by_ends, alignment)
        mm = torch.ops.gemmill.grouped_fp4_mm.default
        mm(d, x, packed.blocks, None, packed.base, None, None, *rows, None, "mxfp4")
    else:
        scales = _in_blocks(name, codes, a_scales, weights, b_scales, of_a, of_b)
        rows = segments(layout, experts, by_ends, alignment)
        torch.ops.gemmill.grouped_mm.default(d, in_rows(codes), in_rows(weights), *scales, *rows)
    if zeros:
        zero_padding(d, layout, experts, by_ends, alignment)


def _in_blocks(
    name: str, codes: Tensor, a_scales: Tensor, weights: Tensor, b_scales: Tensor, of_a: Any, of_b: Any
) -> tuple[Tensor, Tensor]:
    """Scales of e4m3 operands as the grouped kernels take them: f32, of 1 x 128 and of 128 x 128."""
    check_offered(name, "a", of_a, (ROW,))
    check_offered(name, "b", of_b, (BLOCK,))
    first = f32_scales(name, "a", a_scales, tuple(codes.shape), of_a)
    return first, f32_scales(name, "b", b_scales, tuple(weights.shape), of_b)


def m_grouped_fp8_fp4_gemm_nt_masked(
    a: Scaled,
    b: Scaled,
    d: Tensor,
    masked_m: Tensor,
    expected_m: int,
    recipe: Recipe | None = None,
    recipe_a: Recipe2 | None = None,
    recipe_b: Recipe2 | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    epilogue: Any = None,
) -> None:
    """d[e, i] = a[e, i] b[e]^T for the first masked_m[e] rows, int32 [E], without writing d's other rows.

    a is float8_e4m3fn [E, max_m, K] with scales [E, max_m, K / 128], b as of the contiguous form. It copies scales of a
    without a stride common to all rows. With 4-bit weights it upcasts all rows of a.
    """
    name = _FP8.format("nt_masked")
    check_endings(name, None, epilogue)
    codes, a_scales, _ = pair_of(name, "a", a, 3)
    weights, b_scales, is_fp4 = pair_of(name, "b", b, 3)
    of_a, of_b = groups_of(name, b_scales, recipe, recipe_a, recipe_b)
    if is_fp4:
        packed = packed_fp4(name, weights, b_scales, of_b)
        x = widened(name, codes, a_scales, of_a)
        mm = torch.ops.gemmill.grouped_fp4_mm_masked.default
        mm(d, x, packed.blocks, None, packed.base, None, None, masked_m, None, expected_m, "mxfp4")
        return
    first, second = _in_blocks(name, codes, a_scales, weights, b_scales, of_a, of_b)
    if first.shape[0] > 1 and first.stride(0) != first.shape[1] * first.stride(1):
        first = first.contiguous()
    operands = d, in_rows(codes), in_rows(weights), first, second, masked_m
    torch.ops.gemmill.grouped_mm_masked.default(*operands, None, expected_m)


def m_grouped_bf16_gemm_nt_contiguous(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    grouped_layout: Tensor,
    compiled_dims: str = "nk",
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
    epilogue: Any = None,
) -> None:
    """The contiguous form of bfloat16 a [M, K] and b [E, N, K], without scales."""
    check_endings(_BF16.format("nt_contiguous"), None, epilogue)
    layout = grouped_layout, use_psum_layout, expected_m_for_psum_layout
    _plain_contiguous("nt_contiguous", a, b, d, *layout, ensure_zero_padding)


def m_grouped_bf16_gemm_nn_contiguous(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    grouped_layout: Tensor,
    compiled_dims: str = "nk",
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    epilogue: Any = None,
) -> None:
    """The same of b [E, K, N], which each call copies."""
    check_endings(_BF16.format("nn_contiguous"), None, epilogue)
    layout = grouped_layout, use_psum_layout, None
    _plain_contiguous("nn_contiguous", a, b.transpose(-1, -2), d, *layout, ensure_zero_padding)


def _plain_contiguous(
    form: str, a: Tensor, b: Tensor, d: Tensor, layout: Tensor, by_ends: bool, expected_m: int | None, zeros: bool
) -> None:
    check_layout(_BF16.format(form), layout, len(a), len(b), by_ends, expected_m)
    rows = segments(layout, len(b), by_ends, None)
    torch.ops.gemmill.grouped_mm.default(d, in_rows(a), in_rows(b), None, None, *rows)
    if zeros:
        zero_padding(d, layout, len(b), by_ends, None)


def m_grouped_bf16_gemm_nt_masked(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    masked_m: Tensor,
    expected_m: int,
    compiled_dims: str = "nk",
    epilogue: Any = None,
) -> None:
    """The masked form of bfloat16 a [E, max_m, K] and b [E, N, K], without scales."""
    check_endings(_BF16.format("nt_masked"), None, epilogue)
    torch.ops.gemmill.grouped_mm_masked.default(d, in_rows(a), in_rows(b), None, None, masked_m, None, expected_m)


def by_segments(d: Tensor, a: Scaled, b: Scaled, begins: Tensor, ends: Tensor) -> None:
    """The contiguous form with rows of expert e from begins[e] to ends[e], int32 [E] both; d's other rows are left as they are."""
    (codes, a_scales), (weights, b_scales) = a, b
    torch.ops.gemmill.grouped_mm.default(d, codes, weights, a_scales, b_scales, *apart(begins, ends))


m_grouped_fp8_gemm_nt_contiguous = m_grouped_fp8_fp4_gemm_nt_contiguous
"""The same function under its other name."""
m_grouped_fp8_gemm_nn_contiguous = m_grouped_fp8_fp4_gemm_nn_contiguous
"""The same function under its other name."""
m_grouped_fp8_gemm_nt_masked = m_grouped_fp8_fp4_gemm_nt_masked
"""The same function under its other name."""
fp8_m_grouped_gemm_nt_masked = m_grouped_fp8_fp4_gemm_nt_masked
"""The name that DeepGEMM had for it before 2.8."""
bf16_m_grouped_gemm_nt_masked = m_grouped_bf16_gemm_nt_masked
"""The name that DeepGEMM had for it before 2.8."""
