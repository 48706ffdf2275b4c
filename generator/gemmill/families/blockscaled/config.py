"""What a kernel of block-scaled operands is."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

from gemmill.formats.layout import SIDE
from gemmill.vocab import Arch, DType, Format
from gemmill.vocab.format import MXFP4, MXFP6, MXFP8, NVFP4


class Pair(StrEnum):
    """What is multiplied: A, then B. The first ones are in the order of what `fp4_weight_mm` calls its formats."""

    FLOATS_NVFP4 = "floatsxnvfp4"
    """A of 16-bit numbers"""
    FLOATS_MXFP4 = "floatsxmxfp4"
    NVFP4 = "nvfp4xnvfp4"
    MXFP4 = "mxfp4xmxfp4"
    MXFP8 = "mxfp8xmxfp8"
    MXFP8_MXFP6 = "mxfp8xmxfp6"
    MXFP8_MXFP4 = "mxfp8xmxfp4"

    @property
    def a_format(self) -> Format | None:
        """None of 16-bit numbers."""
        return _FORMATS[self][0]

    @property
    def b_format(self) -> Format:
        """Of the weights."""
        return _FORMATS[self][1]


_FORMATS: dict[Pair, tuple[Format | None, Format]] = {
    Pair.FLOATS_NVFP4: (None, NVFP4),
    Pair.FLOATS_MXFP4: (None, MXFP4),
    Pair.NVFP4: (NVFP4, NVFP4),
    Pair.MXFP4: (MXFP4, MXFP4),
    Pair.MXFP8: (MXFP8, MXFP8),
    Pair.MXFP8_MXFP6: (MXFP8, MXFP6),
    Pair.MXFP8_MXFP4: (MXFP8, MXFP4),
}
WEIGHT_PAIRS = (Pair.FLOATS_NVFP4, Pair.FLOATS_MXFP4)
"""Of `fp4_weight_mm`."""


@dataclass(frozen=True, kw_only=True)
class WidenedConfig:
    """A kernel that widens codes to bf16 on their way to Hopper's tensor core: kernels/blockscaled/widened_mm.cuh. Of weights
    alone it takes those that nobody packed."""

    pair: Pair
    out_dtype: DType
    tile: int
    """Rows and columns of D that a CTA computes."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "widened"
    prepacked: ClassVar[bool] = False

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
    rows: int = 64
    """Of weights that a group multiplies: 64, or of a warp 32."""
    row_groups: int = 2
    """Groups on different rows of weights."""
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
        return self.rows * self.row_groups

    @property
    def stage_bytes(self) -> int:
        """Of weights and of activations."""
        block_bytes = SIDE * SIDE // 2 + SIDE * SIDE // self.pair.b_format.group
        return self.stage_columns * (self.tile_n // SIDE * block_bytes // SIDE + 2 * self.tile_m)

    @property
    def ctas_of_sm(self) -> int:
        """That fit on a multiprocessor, as far as shared memory goes: two or one."""
        return 2 if self.stages * self.stage_bytes + 2048 <= 113 * 1024 else 1


AnyConfig = WeightConfig | WidenedConfig | FewConfig | ManyConfig | PairConfig
"""Of the family."""
