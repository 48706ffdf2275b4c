"""The swizzled scale layout: formula, inverse and torch's form of it against values written out by hand.

tests/families/blockscaled/compile holds the same formula against CUTLASS's own layout function.
"""

import pytest
import torch

from gemmill.formats.layout import (
    LANES,
    TILE_BYTES,
    TILE_ROWS,
    TILE_SCALES,
    padded_offsets,
    swizzled_offset,
    swizzled_shape,
)
from gemmill.formats.quantise import swizzle, unswizzle


def swizzled_place(offset: int, scales: int) -> tuple[int, int]:
    """Row and group of the scale at an offset: the inverse of swizzled_offset. Padding has places of its own."""
    tiles = -(-scales // TILE_SCALES)
    tile, inside = divmod(offset, TILE_BYTES)
    lane, rest = divmod(inside, TILE_SCALES * TILE_SCALES)
    quarter, scale = divmod(rest, TILE_SCALES)
    return tile // tiles * TILE_ROWS + quarter * LANES + lane, tile % tiles * TILE_SCALES + scale


SHAPES = [(1, 1), (1, 4), (3, 5), (127, 4), (128, 3), (129, 9), (256, 8), (300, 13)]


@pytest.mark.parametrize(
    ("row", "scale", "scales", "offset"),
    [
        (0, 0, 8, 0),
        (0, 3, 8, 3),
        (1, 0, 8, 16),
        (31, 3, 8, 499),
        (32, 0, 8, 4),
        (96, 2, 8, 14),
        (127, 3, 8, 511),
        (0, 4, 8, 512),
        (128, 0, 8, 1024),
        (128, 0, 5, 1024),
        (128, 0, 4, 512),
        (200, 6, 9, 2 * 3 * 512 - 3 * 512 + 512 + 8 * 16 + 2 * 4 + 2),
    ],
)
def test_offsets_by_hand(row: int, scale: int, scales: int, offset: int) -> None:
    assert swizzled_offset(row, scale, scales) == offset
    assert swizzled_place(offset, scales) == (row, scale)


@pytest.mark.parametrize(("rows", "scales"), SHAPES)
def test_formula_is_a_bijection_onto_the_padded_tensor(rows: int, scales: int) -> None:
    padded_rows, padded_scales = swizzled_shape(rows, scales)
    assert (padded_rows % 128, padded_scales % 4) == (0, 0)
    assert padded_rows - 128 < rows <= padded_rows and padded_scales - 4 < scales <= padded_scales
    offsets = [swizzled_offset(row, scale, scales) for row in range(padded_rows) for scale in range(padded_scales)]
    assert sorted(offsets) == list(range(padded_rows * padded_scales))
    places = [swizzled_place(offset, scales) for offset in offsets]
    assert places == [(row, scale) for row in range(padded_rows) for scale in range(padded_scales)]


@pytest.mark.parametrize(("rows", "scales"), SHAPES)
def test_torchs_form_is_the_formula(rows: int, scales: int) -> None:
    plain = torch.randint(1, 255, (rows, scales), dtype=torch.uint8)
    flat = swizzle(plain).flatten()
    wanted = torch.zeros_like(flat)
    for row in range(rows):
        for scale in range(scales):
            wanted[swizzled_offset(row, scale, scales)] = plain[row, scale]
    assert torch.equal(flat, wanted), "padding must be zero"
    assert torch.equal(unswizzle(flat, rows, scales), plain)
    poisoned = torch.where(flat == 0, 255, flat)
    assert torch.equal(unswizzle(poisoned, rows, scales), plain), "padding must not be read"


@pytest.mark.parametrize(("rows", "scales"), [(0, 4), (4, 0), (0, 0)])
def test_nothing_to_swizzle(rows: int, scales: int) -> None:
    swizzled = swizzle(torch.zeros(rows, scales, dtype=torch.uint8))
    assert tuple(swizzled.shape) == swizzled_shape(rows, scales)
    assert tuple(unswizzle(swizzled, rows, scales).shape) == (rows, scales)


def test_wrong_size() -> None:
    with pytest.raises(
        ValueError,
        match=r"^swizzled scales of 130 rows of 5 take 256 x 8 bytes, got 1024: rows are padded to 128 and scales of a row "
        r"to 4$",
    ):
        unswizzle(torch.zeros(128, 8, dtype=torch.uint8), 130, 5)


def test_experts_begin_at_multiples_of_128() -> None:
    assert padded_offsets([0, 1, 128, 129]) == (0, 0, 128, 256, 512)
    assert padded_offsets([]) == (0,)
