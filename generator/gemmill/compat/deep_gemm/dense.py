"""DeepGEMM's dense GEMMs, by gemmill's cutlass_scaled_mm, and of 4-bit weights by fp4_weight_mm.

`compiled_dims`, `disable_ue8m0_cast`, `alpha` and `epilogue` are as of the grouped ones. Each call copies operands
whose K has gaps: a of tn and tt, b of nn and tn. d is bfloat16. All functions raise RuntimeError, in a sentence, for
unsupported arguments, and as cutlass_scaled_mm does, before they write anything.
"""

from collections.abc import Callable
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
from gemmill.compat.deep_gemm.scales import BLOCK, ROW, Recipe, Recipe2, check_offered, f32_scales, groups_of

Recipes = tuple[Recipe | None, Recipe2 | None, Recipe2 | None]
Endings = tuple[Any, Any]


def fp8_fp4_gemm_nt(
    a: Scaled,
    b: Scaled,
    d: Tensor,
    c: Tensor | None = None,
    recipe: Recipe | None = None,
    recipe_a: Recipe2 | None = None,
    recipe_b: Recipe2 | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    alpha: Any = None,
    epilogue: Any = None,
) -> None:
    """d = a b^T, or c + a b^T: a is float8_e4m3fn [M, K] with scales of 1 x 128, b [N, K] with scales of 128 x 128 or 1 x 128.

    Scales are float32 in any layout, or int32 of four ue8m0 bytes; without a recipe packed ones are for 1 x 128. b may be int8
    [N, K / 2] of 4-bit codes, as of m_grouped_fp8_fp4_gemm_nt_contiguous. c has the shape and type of d, and may be d. The product is
    rounded to d's type, and so is its sum with c: so does DeepGEMM.
    """
    _scaled("fp8_fp4_gemm_nt", a, b, d, c, (recipe, recipe_a, recipe_b), (alpha, epilogue))


def fp8_fp4_gemm_nn(
    a: Scaled,
    b: Scaled,
    d: Tensor,
    c: Tensor | None = None,
    recipe: Recipe | None = None,
    recipe_a: Recipe2 | None = None,
    recipe_b: Recipe2 | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    alpha: Any = None,
    epilogue: Any = None,
) -> None:
    """The same of b [K, N], with its scales transposed; it refuses 4-bit codes."""
    _scaled("fp8_fp4_gemm_nn", a, _turned(b), d, c, (recipe, recipe_a, recipe_b), (alpha, epilogue))


def fp8_fp4_gemm_tn(
    a: Scaled,
    b: Scaled,
    d: Tensor,
    c: Tensor | None = None,
    recipe: Recipe | None = None,
    recipe_a: Recipe2 | None = None,
    recipe_b: Recipe2 | None = None,
    compiled_dims: str = "mn",
    disable_ue8m0_cast: bool = False,
    alpha: Any = None,
    epilogue: Any = None,
) -> None:
    """The same of a [K, M] and b [K, N], with their scales transposed; it refuses 4-bit codes."""
    _scaled("fp8_fp4_gemm_tn", _turned(a), _turned(b), d, c, (recipe, recipe_a, recipe_b), (alpha, epilogue))


def fp8_fp4_gemm_tt(
    a: Scaled,
    b: Scaled,
    d: Tensor,
    c: Tensor | None = None,
    recipe: Recipe | None = None,
    recipe_a: Recipe2 | None = None,
    recipe_b: Recipe2 | None = None,
    compiled_dims: str = "mn",
    disable_ue8m0_cast: bool = False,
    alpha: Any = None,
    epilogue: Any = None,
) -> None:
    """The same of a [K, M] with its scales transposed, and b [N, K]."""
    _scaled("fp8_fp4_gemm_tt", _turned(a), b, d, c, (recipe, recipe_a, recipe_b), (alpha, epilogue))


def bf16_gemm_nt(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    c: Tensor | None = None,
    compiled_dims: str = "nk",
    alpha: Any = None,
    epilogue: Any = None,
) -> None:
    """d = a b^T, or c + a b^T, of bfloat16 a [M, K] and b [N, K], without scales. c is as of fp8_fp4_gemm_nt."""
    _plain("bf16_gemm_nt", a, b, d, c, (alpha, epilogue))


def bf16_gemm_nn(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    c: Tensor | None = None,
    compiled_dims: str = "nk",
    alpha: Any = None,
    epilogue: Any = None,
) -> None:
    """The same of b [K, N]."""
    _plain("bf16_gemm_nn", a, b.mT, d, c, (alpha, epilogue))


def bf16_gemm_tn(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    c: Tensor | None = None,
    compiled_dims: str = "mn",
    alpha: Any = None,
    epilogue: Any = None,
) -> None:
    """The same of a [K, M] and b [K, N]."""
    _plain("bf16_gemm_tn", a.mT, b.mT, d, c, (alpha, epilogue))


def bf16_gemm_tt(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    c: Tensor | None = None,
    compiled_dims: str = "mn",
    alpha: Any = None,
    epilogue: Any = None,
) -> None:
    """The same of a [K, M] and b [N, K]."""
    _plain("bf16_gemm_tt", a.mT, b, d, c, (alpha, epilogue))


def _turned(x: Scaled) -> Scaled:
    """Codes and scales with rows for columns; a later check refuses an operand that is no pair."""
    return (x[0].mT, x[1].mT) if isinstance(x, tuple) else x


def _scaled(name: str, a: Scaled, b: Scaled, d: Tensor, c: Tensor | None, recipes: Recipes, endings: Endings) -> None:
    check_endings(name, *endings)
    codes, a_scales, _ = pair_of(name, "a", a, 2)
    weights, b_scales, is_fp4 = pair_of(name, "b", b, 2)
    of_a, of_b = groups_of(name, b_scales, *recipes)
    shape = codes.shape[0], weights.shape[0]
    if is_fp4:
        packed = packed_fp4(name, weights[None], b_scales[None], of_b)
        x = widened(name, codes, a_scales, of_a)

        def multiply(out: Tensor) -> None:
            mm = torch.ops.gemmill.fp4_weight_mm.default
            mm(out, x, packed.blocks[0], packed.base[0], None, None, "mxfp4", True)

    else:
        check_offered(name, "a", of_a, (ROW,))
        check_offered(name, "b", of_b, (BLOCK, ROW))
        first = f32_scales(name, "a", a_scales, tuple(codes.shape), of_a)
        second = f32_scales(name, "b", b_scales, tuple(weights.shape), of_b)

        def multiply(out: Tensor) -> None:
            operands = in_rows(codes), in_rows(weights).t(), _dense(first), _dense(second).t()
            torch.ops.gemmill.cutlass_scaled_mm.default(out, *operands, None)

    _ended(name, d, c, shape, codes.shape[1], multiply)


def _dense(scales: Tensor) -> Tensor:
    """Scales of which rows or columns have no gaps, as the op reads them."""
    return scales if 1 in scales.stride() else scales.contiguous()


def _plain(name: str, a: Tensor, b: Tensor, d: Tensor, c: Tensor | None, endings: Endings) -> None:
    check_endings(name, *endings)
    for operand, x in (("a", a), ("b", b)):
        if x.dim() != 2 or x.dtype != torch.bfloat16:
            raise RuntimeError(
                f"{name}: {operand} is {x.dtype} {list(x.shape)}, expected two dimensions of torch.bfloat16"
            )

    def multiply(out: Tensor) -> None:
        one = torch.ones(1, device=a.device, dtype=torch.float32)
        torch.ops.gemmill.cutlass_scaled_mm.default(out, in_rows(a), in_rows(b).t(), one, one, None)

    _ended(name, d, c, (a.shape[0], b.shape[0]), a.shape[1], multiply)


def _ended(
    name: str, d: Tensor, c: Tensor | None, shape: tuple[int, int], k: int, multiply: Callable[[Tensor], None]
) -> None:
    """Write the product to d, or its sum with c. Without K the product is 0."""
    if d.dtype != torch.bfloat16 or d.shape != shape:
        raise RuntimeError(
            f"{name}: d is {d.dtype} {list(d.shape)}, expected torch.bfloat16 {list(shape)}: gemmill's GEMMs write no float32"
        )
    if c is not None and (c.dtype != d.dtype or c.shape != d.shape):
        raise RuntimeError(
            f"{name}: c is {c.dtype} {list(c.shape)}, expected {d.dtype} {list(d.shape)} as d, to which it is added"
        )
    if 0 in shape:
        return
    if c is None:
        if k:
            multiply(d)
        else:
            d.zero_()
        return
    product = torch.empty_like(d) if k else torch.zeros_like(d)
    if k:
        multiply(product)
    torch.add(c, product, out=d)


fp8_gemm_nt = fp8_fp4_gemm_nt
"""The same function under its other name."""
fp8_gemm_nn = fp8_fp4_gemm_nn
"""The same function under its other name."""
fp8_gemm_tn = fp8_fp4_gemm_tn
"""The same function under its other name."""
fp8_gemm_tt = fp8_fp4_gemm_tt
"""The same function under its other name."""
