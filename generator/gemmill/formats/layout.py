"""Where block scales lie in memory: plain, one row after another, or swizzled, as block-scaled tensor cores load them.

Swizzled is CUTLASS's Sm1xxBlockScaledConfig (K-major) and torch's SWIZZLE_32_4_4. Tiles of 128 rows x 4 scales are 512
bytes in which row r, scale c is at (r % 32) * 16 + (r / 32) * 4 + c. Tiles follow one another along K, then along rows.
Zero bytes pad rows to 128 and scales of a row to 4. All scales are single bytes, so offsets are in bytes.
"""

from collections.abc import Sequence
from itertools import accumulate

TILE_ROWS = 128
TILE_SCALES = 4
TILE_BYTES = TILE_ROWS * TILE_SCALES
LANES = 32
"""Rows of a tile whose scales are 16 bytes apart; the rows 32 further are next to them."""
SIDE = 64
"""Rows and columns of a block of packed weights (`gemmill.formats.fp4_blocks`)."""
BLOCK_COLUMNS = 128
"""Columns of a block of folded weights (`gemmill.formats.folded_blocks`), and of those that share a scale of activations."""
ROW_BYTES = 16
"""Rows of codes and scales are padded to a multiple of it (`gemmill.formats.packed_rows`)."""
STAGE_COLUMNS = 256
"""Their K is padded to a multiple of it, so that every kernel's stage is a whole number of blocks."""
META_ROWS, META_COLUMNS = 64, 128
"""Rows and columns of a block of the metadata of 2:4 sparse weights (`gemmill.formats.two_to_four`)."""

GATE_UP_ROWS = 32
"""Packed rows of gates and ups, of half as many results (`gemmill.formats.gate_up`)."""
GATE_UP_BLOCK = 128
"""Gates, or ups, that share a scale where scales come in blocks, and elements along K."""
FINE_GATE_UP_BLOCK = 32
"""The same in fine blocks."""


def swizzled_shape(rows: int, scales: int) -> tuple[int, int]:
    """Padded rows and scales of a row; their product is the size of the swizzled tensor."""
    return -(-rows // TILE_ROWS) * TILE_ROWS, -(-scales // TILE_SCALES) * TILE_SCALES


def swizzled_offset(row: int, scale: int, scales: int) -> int:
    """The place of the scale of a row and a group, where a row has `scales` of them."""
    tiles = -(-scales // TILE_SCALES)
    tile = row // TILE_ROWS * tiles + scale // TILE_SCALES
    lane, quarter = row % LANES, row % TILE_ROWS // LANES
    return tile * TILE_BYTES + (lane * TILE_SCALES + quarter) * TILE_SCALES + scale % TILE_SCALES


def padded_offsets(rows: Sequence[int]) -> tuple[int, ...]:
    """The first row of each expert's scales, and the end. Experts with `rows` rows each begin at multiples of 128."""
    return (0, *accumulate(swizzled_shape(count, 0)[0] for count in rows))
