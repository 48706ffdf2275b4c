"""DeepGEMM's scales: how many elements share one, and their values."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.formats.codes import two_to
from gemmill.vocab.float_type import UE8M0

Recipe = tuple[int, int, int]
"""Rows of A, rows of B, and columns along K that share a scale."""
Recipe2 = tuple[int, int]
"""The same of one operand: rows, and columns along K."""
PER_WORD = 4
"""The scales of one byte that an int32 holds, the first in its low bits."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The elements of an operand that share a scale."""

    rows: int
    columns: int
    """Along K."""

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns}"


ROW = Group(rows=1, columns=128)
BLOCK = Group(rows=128, columns=128)


def groups_of(
    name: str, b_scales: Tensor, recipe: Recipe | None, recipe_a: Recipe2 | None, recipe_b: Recipe2 | None
) -> tuple[Group, Group]:
    """The groups of A and of B in a call. Without recipes they are 1 x 128 and 128 x 128, of packed scales 1 x 128.

    Raises RuntimeError, in a sentence, where `recipe` and the others are not given as DeepGEMM takes them.
    """
    if (recipe_a is None) != (recipe_b is None) or (recipe is not None and recipe_a is not None):
        raise RuntimeError(
            f"{name}: recipe is {recipe}, recipe_a {recipe_a} and recipe_b {recipe_b}: give recipe, or recipe_a with recipe_b, or none"
        )
    if recipe_a is not None and recipe_b is not None:
        of_a, of_b = _sized(name, "recipe_a", recipe_a, 2), _sized(name, "recipe_b", recipe_b, 2)
        return Group(rows=of_a[0], columns=of_a[1]), Group(rows=of_b[0], columns=of_b[1])
    if recipe is None:
        recipe = (1, 1, 128) if b_scales.dtype == torch.int32 else (1, 128, 128)
    rows_a, rows_b, columns = _sized(name, "recipe", recipe, 3)
    return Group(rows=rows_a, columns=columns), Group(rows=rows_b, columns=columns)


def _sized(name: str, argument: str, recipe: tuple[int, ...], length: int) -> tuple[int, ...]:
    if len(recipe) != length:
        raise RuntimeError(
            f"{name}: {argument} is {tuple(recipe)}, expected {length} numbers of elements that share a scale"
        )
    return tuple(recipe)


def check_offered(name: str, operand: str, group: Group, offered: tuple[Group, ...]) -> None:
    """Raises RuntimeError unless a group is one of those that gemmill has kernels for."""
    if group not in offered:
        raise RuntimeError(
            f"{name}: scales of {operand} are for each {group}, offered are those for each {' or '.join(map(str, offered))}"
        )


def f32_scales(name: str, operand: str, scales: Tensor, shape: tuple[int, ...], group: Group) -> Tensor:
    """Scales f32 [..., rows / group.rows, K / group.columns] of an operand of `shape` [..., rows, K], sizes rounded up.

    They are given so, in any layout, or as int32 of four ue8m0 bytes along K. Raises RuntimeError, in a sentence, for others.
    """
    *outer, rows, k = shape
    expected = (*outer, -(-rows // group.rows), -(-k // group.columns))
    words = (*expected[:-1], -(-expected[-1] // PER_WORD))
    if scales.dtype == torch.float32 and scales.shape == expected:
        return scales
    if scales.dtype == torch.int32 and scales.shape == words:
        return values_of(scales.contiguous().view(torch.uint8)[..., : expected[-1]])
    raise RuntimeError(
        f"{name}: scales of {operand} are {scales.dtype} {list(scales.shape)}, expected torch.float32 {list(expected)}, or torch.int32 "
        f"{list(words)} of {PER_WORD} ue8m0 bytes: one for each {group}"
    )


def values_of(exponents: Tensor) -> Tensor:
    """f32 of ue8m0 bytes: 2^(byte - 127), NaN of byte 255."""
    return two_to((exponents.int() - UE8M0.bias).clamp(max=127)).masked_fill_(exponents > UE8M0.last_code, torch.nan)
