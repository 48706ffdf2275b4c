"""What a kernel of block-scaled operands is."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, Self

from gemmill.families.blockscaled.pairs import CODE_PAIRS, FOLDED_PAIRS, FP4_PAIRS, WORD_PAIRS, Pair
from gemmill.formats.layout import BLOCK_COLUMNS, SIDE, STAGE_COLUMNS
from gemmill.vocab import Arch, DType
from gemmill.vocab.format import MXFP8

NARROW = 64
"""Columns of a tile of sm120a that takes half of a tile of scales."""
RING_COLUMNS = 128
"""Columns of a stage that a warp asks for ahead."""


@dataclass(frozen=True, kw_only=True)
class OfPair:
    """What all kernels of a pair have."""

    pair: Pair
    out_dtype: DType

    @property
    def operand_dtype(self) -> DType:
        """The dtype of A as a call passes it; codes that are not of 8 bits come as bytes."""
        if self.pair.a_format is None and self.pair not in FOLDED_PAIRS:
            return self.out_dtype
        return DType.E4M3 if self.pair.a_bits == 8 else DType.U8

    @property
    def group_size(self) -> int:
        """Weights along K that share a scale."""
        return self.pair.b_format.group


@dataclass(frozen=True, kw_only=True)
class WidenedConfig(OfPair):
    """A kernel that widens codes to 16 bits on their way to Hopper's tensor core: kernels/blockscaled/widened_mm.cuh.

    Codes become bf16, or f16 beside activations of f16.
    """

    tile: int
    """Rows and columns of D that a CTA computes."""
    prepacked: bool = False
    """Whether weights are rows of codes and scales that were packed, not a checkpoint's."""
    grouped: bool = False
    """Whether activations of e4m3 have a scale for each 128 columns."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "widened"
    splits: ClassVar[int] = 1
    sms: ClassVar[int] = 1
    k_multiple: ClassVar[int] = 1

    @property
    def compiled(self) -> Self:
        """Itself: nothing is told at run time."""
        return self

    @property
    def tile_m(self) -> int:
        """Rows of A in a tile."""
        return self.tile

    @property
    def tile_n(self) -> int:
        """Rows of B in a tile."""
        return self.tile

    @property
    def ctas_of_sm(self) -> int:
        """CTAs of a multiprocessor that registers leave room for."""
        return 4 if self.tile <= SIDE else 2


@dataclass(frozen=True, kw_only=True)
class FewConfig(OfPair):
    """A kernel that widens codes to 16 bits in registers, for few rows of A: kernels/blockscaled/widened_few_mm.cuh.

    With stages it is ring_few_mm.cuh, whose warps ask for codes some steps ahead. Codes become what they do in a
    `WidenedConfig`, but those of nvfp4 become f16.
    """

    tile_m: int
    """Rows of A in a tile, which has 64 rows of B."""
    warps: int
    """Warps that divide a CTA's columns of K."""
    prepacked: bool = False
    """Whether weights are rows of codes and scales that were packed, not a checkpoint's."""
    stages: int = 0
    """Stages of 128 columns that a warp has in shared memory of its own; 0 where codes come straight to registers."""
    splits: int = 1
    """CTAs of a cluster that share one tile, each with a slice of K; told at run time."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "widenedfew"
    grouped: ClassVar[bool] = False
    tile_n: ClassVar[int] = SIDE
    sms: ClassVar[int] = 1

    @property
    def in_words(self) -> bool:
        """Whether both operands have eight codes in a word, which both take in the same order."""
        return self.pair in WORD_PAIRS

    @property
    def k_multiple(self) -> int:
        """Number of which K is a multiple: a lane loads 32 columns of both operands, and stages are whole."""
        return RING_COLUMNS if self.stages else 32 if self.in_words else 1

    @property
    def compiled(self) -> Self:
        """The same machine code with K in one slice."""
        return replace(self, splits=1)

    @property
    def ctas_of_sm(self) -> int:
        """CTAs of a multiprocessor. Registers leave room for sixteen warps, or for twelve where columns are in order;
        stages have to fit into shared memory."""
        of_registers = (16 if self.in_words else 12) // self.warps
        return (
            min(of_registers, self.arch.shared_memory_bytes // (self.stages_bytes + 1024))
            if self.stages
            else of_registers
        )

    @property
    def stages_bytes(self) -> int:
        """Bytes of all warps' stages: codes and scales of 64 rows of weights, and of A's rows. A's 16-bit numbers lie
        16 bytes further after each 512."""
        of_codes = 8 * RING_COLUMNS * self.pair.b_format.code.bits // 8 + 128
        of_eight = of_codes if self.pair in CODE_PAIRS else 4 * 528
        stage = 8 * of_codes + self.tile_m // 8 * of_eight
        return self.warps * self.stages * (-(-stage // 128) * 128)


@dataclass(frozen=True, kw_only=True)
class TmaFewConfig(OfPair):
    """A kernel of weights packed in rows beside few rows of 16-bit numbers, brought by TMA: kernels/blockscaled/tma_few_mm.cuh.

    Codes become what they do in a `FewConfig` with stages.
    """

    tile_m: int
    """Rows of A in a tile, which has 64 rows of B."""
    warps: int
    """Warps that divide a CTA's columns of K."""
    stages: int
    """Stages that a warp has in shared memory of its own."""
    splits: int = 1
    """CTAs of a cluster that share one tile, each with a slice of K; told at run time."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "tmafew"
    prepacked: ClassVar[bool] = True
    grouped: ClassVar[bool] = False
    tile_n: ClassVar[int] = SIDE
    sms: ClassVar[int] = 1

    @property
    def stage_columns(self) -> int:
        """Columns of a stage: of 4-bit codes 128 bytes, else as many as a warp multiplies at a time."""
        return 2 * RING_COLUMNS if self.pair in FP4_PAIRS else RING_COLUMNS

    @property
    def k_multiple(self) -> int:
        """Number of which K is a multiple: stages are whole, and scales begin at multiples of 16 bytes."""
        return self.stage_columns

    @property
    def compiled(self) -> Self:
        """The same machine code with K in one slice."""
        return replace(self, splits=1)

    @property
    def stages_bytes(self) -> int:
        """Bytes of all warps' stages: of 64 rows of weights codes, and 16 bytes that have the scales; then A's rows."""
        of_weights = self.tile_n * (self.stage_columns * self.pair.b_format.code.bits // 8 + 16)
        return self.warps * self.stages * (of_weights + self.tile_m * self.stage_columns * 2)

    @property
    def shared_bytes(self) -> int:
        """Bytes of a CTA: stages, their barriers, and room to align them."""
        return self.stages_bytes + 8 * self.warps * self.stages + 1024

    @property
    def ctas_of_sm(self) -> int:
        """CTAs of a multiprocessor that registers leave room for, and shared memory, of which each takes 1 KB more."""
        return min(12 // self.warps, self.arch.shared_memory_bytes // (self.shared_bytes + 1024)) or 1


@dataclass(frozen=True, kw_only=True)
class ManyConfig(OfPair):
    """A kernel that widens 4-bit codes of both operands to bf16 on their way to shared memory:
    kernels/blockscaled/widened_many_mm.cuh.

    With stages it is ahead_many_mm.cuh, which asks for codes two steps ahead and makes f16 of nvfp4.
    """

    tile_m: int
    """Rows of A in a tile."""
    tile_n: int
    """Rows of B in a tile."""
    stages: int = 0
    """Stages of 64 columns, where codes are asked for two steps ahead; 0 where they are one step ahead, in two
    stages."""
    splits: int = 1
    """CTAs of a cluster that share one tile, each with a slice of K; told at run time."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "widenedmany"
    prepacked: ClassVar[bool] = False
    grouped: ClassVar[bool] = False
    sms: ClassVar[int] = 1

    @property
    def k_multiple(self) -> int:
        """Number of which K is a multiple: a thread loads 32 columns, and two threads load a step."""
        return SIDE if self.stages else 32

    @property
    def compiled(self) -> Self:
        """The same machine code with K in one slice."""
        return replace(self, splits=1)

    @property
    def ctas_of_sm(self) -> int:
        """CTAs of a multiprocessor that registers leave room for."""
        return 1 if self.tile_m * self.tile_n > 128 * 128 else 2

    @property
    def stage_bytes(self) -> int:
        """Bytes of 64 columns of both operands."""
        return (self.tile_m + self.tile_n) * SIDE * 2


class Sharing(StrEnum):
    """How the work on a tile is shared, on Blackwell."""

    ONE_SM = "1sm"
    """a multiprocessor multiplies a tile (sm100a)"""
    TWO_SM = "2sm"
    """two multiprocessors multiply one together, each with half of its rows (sm100a)"""
    COOPERATIVE = "cooperative"
    """two groups of warps take halves of a tile (sm120a)"""
    PINGPONG = "pingpong"
    """two groups of warps take tiles in turns (sm120a)"""


@dataclass(frozen=True, kw_only=True)
class PairConfig(OfPair):
    """A kernel of CUTLASS's block-scaled collectives on Blackwell."""

    tile_shape_mnk: tuple[int, int, int]
    """Tile of one multiplication: that of two multiprocessors together, where they share it."""
    cluster_shape_mnk: tuple[int, int, int]
    sharing: Sharing
    arch: Arch
    tag: ClassVar[str] = "blockscaled"
    prepacked: ClassVar[bool] = False
    grouped: ClassVar[bool] = False
    splits: ClassVar[int] = 1
    ctas_of_sm: ClassVar[int] = 1

    @property
    def compiled(self) -> Self:
        """Itself: nothing is told at run time."""
        return self

    @property
    def tile_m(self) -> int:
        """Rows of A in a tile."""
        return self.tile_shape_mnk[0]

    @property
    def tile_n(self) -> int:
        """Rows of B in a tile."""
        return self.tile_shape_mnk[1]

    @property
    def sms(self) -> int:
        """Multiprocessors that multiply a tile together."""
        return 2 if self.sharing is Sharing.TWO_SM else 1

    @property
    def mixes(self) -> bool:
        """Whether the tensor core's instruction is that of codes of 4, 6 and 8 bits in any mix, each in a byte."""
        return self.pair.a_format == MXFP8

    @property
    def is_narrow(self) -> bool:
        """Whether a tile's columns take half of a tile of scales, for which CUTLASS 4.5 or later is needed (sm120a)."""
        return self.arch is Arch.SM120A and self.mixes and self.tile_n == NARROW

    @property
    def k_multiple(self) -> int:
        """Number of which K is a multiple. Where codes of fewer than 8 bits are mixed with others, TMA gives each a
        byte, in pieces of 128."""
        return 128 if self.mixes and self.pair.b_format != MXFP8 else 1


class Group(StrEnum):
    """The threads that multiply 64 rows of weights together."""

    WARP = "w"
    """32 threads, by mma.sync: few tokens"""
    WARPGROUP = "g"
    """128 threads, by WGMMA"""

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return 32 if self is Group.WARP else 128


@dataclass(frozen=True, kw_only=True)
class PackedConfig(OfPair):
    """A kernel of packed 4-bit weights on Hopper: kernels/blockscaled/packed_mm.cuh."""

    out_dtype: DType = DType.BF16
    group: Group = Group.WARPGROUP
    row_groups: int = 2
    """Groups on different rows of weights: a tile has 64 rows for each."""
    tile_m: int
    """Rows of A in a tile."""
    k_groups: int
    """Groups on the same rows, which divide the columns of a stage; more warps than that take stages in turns."""
    blocks: int
    """Blocks of `part_columns` in a stage, for each group."""
    stages: int
    grouped: bool = False
    """Whether activations have a scale for each 128 columns."""
    stays: bool = False
    """Whether as many CTAs as multiprocessors take tiles in turns, and load the next while they end one: staying_mm.cuh."""
    splits: int = 1
    """CTAs of a cluster that share one tile, each with a slice of K; told at run time."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str]
    block_columns: ClassVar[int]
    """Columns of a block of packed weights: those of 128 bytes of activations."""
    even_tokens: ClassVar[int]
    """Rows of A whose sums leave a thread that multiplies the registers it needs."""
    other_bytes: ClassVar[int]
    """Bytes of shared memory beside stages, at most."""
    prepacked: ClassVar[bool] = True
    sms: ClassVar[int] = 1
    k_multiple: ClassVar[int] = 1

    @property
    def compiled(self) -> Self:
        """The same machine code with K in one slice."""
        return replace(self, splits=1)

    @property
    def part_columns(self) -> int:
        """Columns that a group multiplies together; a warp takes half a block of 128."""
        return SIDE if self.group is Group.WARP else self.block_columns

    @property
    def turns(self) -> int:
        """Turns in which warps take stages."""
        columns = self.part_columns * self.k_groups * self.blocks
        return max(columns // STAGE_COLUMNS, 1) if self.group is Group.WARP else 1

    @property
    def stage_columns(self) -> int:
        """Columns of a stage, along K."""
        return self.part_columns * self.k_groups * self.blocks // self.turns

    @property
    def tile_n(self) -> int:
        """Rows of weights in a tile."""
        return SIDE * self.row_groups

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage: weights, activations, and scales for each block."""
        weights = self.tile_n * (self.stage_columns // 2 + self.stage_columns // self.pair.b_format.group)
        scales = 4 * (self.tile_m + self.tile_n) * self.stage_columns // self.block_columns if self.grouped else 0
        return weights + self.stage_columns * self.tile_m * self.pair.a_bits // 8 + scales

    @property
    def sums(self) -> int:
        """Sums of a row of weights that a group keeps."""
        return self.tile_m * (2 if self.grouped else 1)

    @property
    def is_wide(self) -> bool:
        """Whether its sums take registers that other threads give away."""
        return self.group is Group.WARPGROUP and self.sums > self.even_tokens

    @property
    def ctas_of_sm(self) -> int:
        """CTAs that fit on a multiprocessor: two or one."""
        return 2 if not self.is_wide and self.stages * self.stage_bytes + self.other_bytes <= 113 * 1024 else 1


@dataclass(frozen=True, kw_only=True)
class WeightConfig(PackedConfig):
    """A kernel of packed weights beside bf16 activations."""

    tag: ClassVar[str] = "fp4weight"
    block_columns: ClassVar[int] = SIDE
    even_tokens: ClassVar[int] = 128
    other_bytes: ClassVar[int] = 2048


@dataclass(frozen=True, kw_only=True)
class FoldedConfig(PackedConfig):
    """A kernel of packed weights beside e4m3 activations."""

    batched: bool = False
    """Whether a thread asks for eight quads of partial sums at a time, not for one after another: batched_mm.cuh."""
    tag: ClassVar[str] = "fp4fp8"
    block_columns: ClassVar[int] = BLOCK_COLUMNS
    even_tokens: ClassVar[int] = 64
    other_bytes: ClassVar[int] = 4096


AnyConfig = WeightConfig | WidenedConfig | FewConfig | TmaFewConfig | ManyConfig | FoldedConfig | PairConfig
"""Every config of the family."""
