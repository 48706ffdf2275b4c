"""What a kernel of block-scaled operands is."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

from gemmill.formats.layout import BLOCK_COLUMNS, SIDE
from gemmill.vocab import Arch, DType, Format
from gemmill.vocab.format import MXFP4, MXFP6, MXFP8, NVFP4


class Pair(StrEnum):
    """What is multiplied: A, then B. The first ones are in the order of what `fp4_weight_mm` calls its formats."""

    FLOATS_NVFP4 = "floatsxnvfp4"
    """A of 16-bit numbers"""
    FLOATS_MXFP4 = "floatsxmxfp4"
    FLOATS_MXFP6 = "floatsxmxfp6"
    FLOATS_MXFP8 = "floatsxmxfp8"
    E4M3_MXFP4 = "e4m3xmxfp4"
    """A of e4m3 numbers, with scales of rows or of 128 columns each"""
    E4M3_NVFP4 = "e4m3xnvfp4"
    NVFP4 = "nvfp4xnvfp4"
    MXFP4 = "mxfp4xmxfp4"
    MXFP8 = "mxfp8xmxfp8"
    MXFP8_MXFP6 = "mxfp8xmxfp6"
    MXFP8_MXFP4 = "mxfp8xmxfp4"

    @property
    def a_format(self) -> Format | None:
        """None of numbers that no block scales belong to."""
        return _FORMATS[self][0]

    @property
    def a_bits(self) -> int:
        """Of an element of A."""
        if self.a_format is not None:
            return self.a_format.code.bits
        return 8 if self in FOLDED_PAIRS else 16

    @property
    def b_format(self) -> Format:
        """Of the weights."""
        return _FORMATS[self][1]


_FORMATS: dict[Pair, tuple[Format | None, Format]] = {
    Pair.FLOATS_NVFP4: (None, NVFP4),
    Pair.FLOATS_MXFP4: (None, MXFP4),
    Pair.FLOATS_MXFP6: (None, MXFP6),
    Pair.FLOATS_MXFP8: (None, MXFP8),
    Pair.E4M3_MXFP4: (None, MXFP4),
    Pair.E4M3_NVFP4: (None, NVFP4),
    Pair.NVFP4: (NVFP4, NVFP4),
    Pair.MXFP4: (MXFP4, MXFP4),
    Pair.MXFP8: (MXFP8, MXFP8),
    Pair.MXFP8_MXFP6: (MXFP8, MXFP6),
    Pair.MXFP8_MXFP4: (MXFP8, MXFP4),
}
WEIGHT_PAIRS = (Pair.FLOATS_NVFP4, Pair.FLOATS_MXFP4, Pair.FLOATS_MXFP6, Pair.FLOATS_MXFP8)
"""Of `fp4_weight_mm`."""
FP4_PAIRS = (Pair.FLOATS_NVFP4, Pair.FLOATS_MXFP4)
"""Those whose packed weights are blocks, beside bf16 activations; others are packed in rows."""
FOLDED_PAIRS = (Pair.E4M3_MXFP4, Pair.E4M3_NVFP4)
"""Of `mxfp4_fp8_mm` and `nvfp4_fp8_mm_rounded`."""
CODE_PAIRS = tuple(pair for pair in Pair if pair.a_format is not None)
"""Of two block-scaled operands."""


@dataclass(frozen=True, kw_only=True)
class WidenedConfig:
    """A kernel that widens codes to 16 bits on their way to Hopper's tensor core: kernels/blockscaled/widened_mm.cuh. They become
    bf16, or f16 beside activations of that."""

    pair: Pair
    out_dtype: DType
    tile: int
    """Rows and columns of D that a CTA computes."""
    prepacked: bool = False
    """Whether weights are rows of codes and scales that were packed, not a checkpoint's."""
    grouped: bool = False
    """Whether activations of e4m3 have a scale for each 128 columns."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "widened"

    @property
    def compiled(self) -> "WidenedConfig":
        """Itself: nothing is told at run time."""
        return self

    @property
    def ctas_of_sm(self) -> int:
        """That registers leave room for."""
        return 4 if self.tile <= SIDE else 2


@dataclass(frozen=True, kw_only=True)
class FewConfig:
    """A kernel that widens 4-bit codes of both operands to bf16 in registers, for few rows of A: kernels/blockscaled/widened_few_mm.cuh."""

    pair: Pair
    out_dtype: DType
    tile_m: int
    """Rows of A in a tile; of B a tile has 64."""
    warps: int
    """That divide a CTA's columns of K."""
    splits: int = 1
    """CTAs of a cluster that share one tile, each with a slice of K; told at run time."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "widenedfew"
    prepacked: ClassVar[bool] = False
    grouped: ClassVar[bool] = False

    @property
    def compiled(self) -> "FewConfig":
        """The same machine code with K in one slice."""
        return replace(self, splits=1)

    @property
    def ctas_of_sm(self) -> int:
        """That registers leave room for."""
        return 16 // self.warps


@dataclass(frozen=True, kw_only=True)
class ManyConfig:
    """A kernel that widens 4-bit codes of both operands to bf16 on their way to shared memory: kernels/blockscaled/widened_many_mm.cuh."""

    pair: Pair
    out_dtype: DType
    tile_m: int
    """Rows of A in a tile."""
    tile_n: int
    """Rows of B."""
    splits: int = 1
    """CTAs of a cluster that share one tile, each with a slice of K; told at run time."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "widenedmany"
    prepacked: ClassVar[bool] = False
    grouped: ClassVar[bool] = False

    @property
    def compiled(self) -> "ManyConfig":
        """The same machine code with K in one slice."""
        return replace(self, splits=1)

    @property
    def ctas_of_sm(self) -> int:
        """That registers leave room for."""
        return 1 if self.tile_m * self.tile_n > 128 * 128 else 2

    @property
    def stage_bytes(self) -> int:
        """Of 64 columns of both operands."""
        return (self.tile_m + self.tile_n) * SIDE * 2


class Sharing(StrEnum):
    """How the work on a tile is shared, on Blackwell."""

    ONE_SM = "1sm"
    """a multiprocessor multiplies a tile (sm100a)"""
    TWO_SM = "2sm"
    """two multiply one together, each with half of its rows (sm100a)"""
    COOPERATIVE = "cooperative"
    """two groups of warps take halves of a tile (sm120a)"""
    PINGPONG = "pingpong"
    """they take tiles in turns (sm120a)"""


@dataclass(frozen=True, kw_only=True)
class PairConfig:
    """A kernel of CUTLASS's block-scaled collectives on Blackwell."""

    pair: Pair
    out_dtype: DType
    tile_shape_mnk: tuple[int, int, int]
    """Of one multiplication: of two multiprocessors together where they share it."""
    cluster_shape_mnk: tuple[int, int, int]
    sharing: Sharing
    arch: Arch
    tag: ClassVar[str] = "blockscaled"
    prepacked: ClassVar[bool] = False
    grouped: ClassVar[bool] = False

    @property
    def compiled(self) -> "PairConfig":
        """Itself: nothing is told at run time."""
        return self

    @property
    def mixes(self) -> bool:
        """Whether the tensor core's instruction is that of codes of 4, 6 and 8 bits in any mix, each in a byte."""
        return self.pair.a_format is MXFP8

    @property
    def k_multiple(self) -> int:
        """Of which K is one: TMA gives codes of fewer than 8 bits a byte each in pieces of 128, where they are mixed with others."""
        return 128 if self.mixes and self.pair.b_format is not MXFP8 else 1


class Group(StrEnum):
    """The threads that multiply 64 rows of weights together."""

    WARP = "w"
    """32 by mma.sync: few tokens"""
    WARPGROUP = "g"
    """128 by WGMMA"""

    @property
    def threads(self) -> int:
        """Of a group."""
        return 32 if self is Group.WARP else 128


@dataclass(frozen=True, kw_only=True)
class WeightConfig:
    """A kernel of packed 4-bit weights and bf16 activations on Hopper: kernels/blockscaled/fp4_weight_mm.cuh."""

    pair: Pair
    group: Group = Group.WARPGROUP
    row_groups: int = 2
    """Groups on different rows of weights: a tile has 64 of each."""
    tile_m: int
    """Rows of A in a tile."""
    k_groups: int
    """Groups on the same rows, which divide the columns of a stage."""
    blocks: int
    """Of 64 columns in a stage, of each group."""
    stages: int
    splits: int = 1
    """CTAs of a cluster that share one tile, each with a slice of K; told at run time."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "fp4weight"
    out_dtype: ClassVar[DType] = DType.BF16
    prepacked: ClassVar[bool] = True
    grouped: ClassVar[bool] = False

    @property
    def compiled(self) -> "WeightConfig":
        """The same machine code with K in one slice."""
        return replace(self, splits=1)

    @property
    def stage_columns(self) -> int:
        """Along K."""
        return SIDE * self.k_groups * self.blocks

    @property
    def tile_n(self) -> int:
        """Rows of weights in a tile."""
        return SIDE * self.row_groups

    @property
    def stage_bytes(self) -> int:
        """Of weights and of activations."""
        block_bytes = SIDE * SIDE // 2 + SIDE * SIDE // self.pair.b_format.group
        return self.stage_columns * (self.tile_n // SIDE * block_bytes // SIDE + 2 * self.tile_m)

    @property
    def ctas_of_sm(self) -> int:
        """That fit on a multiprocessor, as far as shared memory goes: two or one."""
        return 2 if self.stages * self.stage_bytes + 2048 <= 113 * 1024 else 1


@dataclass(frozen=True, kw_only=True)
class FoldedConfig:
    """A kernel of packed 4-bit weights and e4m3 activations on Hopper: kernels/blockscaled/folded_mm.cuh."""

    pair: Pair
    out_dtype: DType
    tile_m: int
    """Rows of A in a tile; of weights a tile has 128."""
    k_groups: int
    """Groups of 2 x 128 threads that divide the columns of a stage."""
    blocks: int
    """Of 128 columns in a stage, of each group."""
    stages: int
    grouped: bool = False
    """Whether activations have a scale for each 128 columns."""
    splits: int = 1
    """CTAs of a cluster that share one tile, each with a slice of K; told at run time."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "fp4fp8"
    prepacked: ClassVar[bool] = True
    tile_n: ClassVar[int] = 2 * SIDE

    @property
    def compiled(self) -> "FoldedConfig":
        """The same machine code with K in one slice."""
        return replace(self, splits=1)

    @property
    def stage_columns(self) -> int:
        """Along K."""
        return BLOCK_COLUMNS * self.k_groups * self.blocks

    @property
    def stage_bytes(self) -> int:
        """Of weights, two blocks high, of activations, and of scales for each block."""
        block_bytes = SIDE * BLOCK_COLUMNS // 2 + SIDE * BLOCK_COLUMNS // self.pair.b_format.group
        scales = 4 * (self.tile_m + 2 * SIDE) if self.grouped else 0
        return self.k_groups * self.blocks * (2 * block_bytes + BLOCK_COLUMNS * self.tile_m + scales)

    @property
    def is_wide(self) -> bool:
        """Whether its sums take registers that other threads give away."""
        return self.tile_m * (2 if self.grouped else 1) > SIDE

    @property
    def ctas_of_sm(self) -> int:
        """That fit on a multiprocessor: two or one."""
        return 2 if not self.is_wide and self.stages * self.stage_bytes + 4096 <= 113 * 1024 else 1


AnyConfig = WeightConfig | WidenedConfig | FewConfig | ManyConfig | FoldedConfig | PairConfig
"""Of the family."""
