"""The packings of experts' weights: their number in the op's `format`, and their bytes."""

from dataclasses import dataclass

from gemmill.formats.layout import BLOCK_COLUMNS, SIDE, STAGE_COLUMNS
from gemmill.vocab import Format
from gemmill.vocab.format import MXFP4, NVFP4

SPARSE_GROUPS = (16, 8)
"""Columns that share a scale of 2:4 sparse weights, which are nvfp4."""
_SPARSE_MULTIPLE = 32
"""Of columns of 2:4 sparse weights: their patterns are whole bytes in all layouts."""


@dataclass(frozen=True, kw_only=True)
class Packing:
    """One way of packing 4-bit weights."""

    format: Format
    """Format of the weights."""
    sparse_group: int = 0
    """Columns that share a scale of 2:4 sparse weights; 0 for dense ones."""
    is_coded: bool = False
    """Whether weights fold into e4m3, and activations become codes of it."""

    def __str__(self) -> str:
        sparse = {0: "", 16: "_2to4", 8: "_2to4_8"}[self.sparse_group]
        return f"{self.format}{sparse}{'_e4m3' if self.is_coded else ''}"

    @property
    def multiple(self) -> int:
        """Rows have so many elements, or a multiple."""
        return _SPARSE_MULTIPLE if self.sparse_group else self.format.group

    @property
    def block_columns(self) -> int:
        """Columns of a block, which has 64 rows."""
        return BLOCK_COLUMNS if self.is_coded else SIDE

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        values = SIDE * self.block_columns
        if self.sparse_group:  # half of the codes, and four bits of places for each four columns
            return values // 4 + values // 8 + values // self.sparse_group
        return values // 2 + values // self.format.group

    @property
    def bits(self) -> float:
        """Memory of a weight, with its part of places and scales."""
        return 8 * self.block_bytes / (SIDE * self.block_columns)

    def blocks_shape(self, experts: int, rows: int, columns: int) -> tuple[int, int, int, int]:
        """Shape of the uint8 blocks: [experts, blocks along rows, blocks along columns, bytes of a block]."""
        stages = -(-columns // STAGE_COLUMNS)
        return experts, -(-rows // SIDE), stages * (STAGE_COLUMNS // self.block_columns), self.block_bytes


PACKINGS = (
    Packing(format=NVFP4),
    Packing(format=MXFP4),
    Packing(format=NVFP4, sparse_group=16),
    Packing(format=NVFP4, sparse_group=8),
    Packing(format=MXFP4, is_coded=True),
    Packing(format=NVFP4, is_coded=True),
)
"""In the order of the op's `format`."""
FIRST_CODED = 4
"""The first packing whose activations become codes; those behind it have them too."""
PACKING_NAMES = tuple(map(str, PACKINGS))
