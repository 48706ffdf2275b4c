"""The config of a kernel for block-scaled operands: operands, design, epilogue."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from gemmill.families.blockscaled.design import (
    FewDesign,
    FewLoop,
    Group,
    ManyDesign,
    ManyLoop,
    PackedDesign,
    PairDesign,
    Sharing,
)
from gemmill.families.blockscaled.pairs import CODE_PAIRS, FOLDED_PAIRS, FP4_PAIRS, WORD_PAIRS, Pair
from gemmill.formats.layout import BLOCK_COLUMNS, SIDE, STAGE_COLUMNS
from gemmill.vocab import Arch, DType
from gemmill.vocab.format import MXFP8

NARROW = 64
"""Columns of a tile of sm120f that takes half of a tile of scales."""
RING_COLUMNS = 128
"""Columns of a stage that a warp prefetches."""


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The operands of the product."""

    pair: Pair
    prepacked: bool = False
    """Whether the call has packed weights, in blocks or in rows of codes and scales; else they are a checkpoint's."""
    grouped: bool = False
    """Whether activations of e4m3 have a scale for each 128 columns."""


@dataclass(frozen=True, kw_only=True)
class Epilogue:
    """The operations on sums. Whether there are alpha and bias, each call says."""

    out_dtype: DType


@dataclass(frozen=True, kw_only=True)
class _Common:
    """The fields that all kernels have."""

    operands: Operands
    epilogue: Epilogue

    @property
    def pair(self) -> Pair:
        """The operands of the product."""
        return self.operands.pair

    @property
    def prepacked(self) -> bool:
        """Whether the call has packed weights."""
        return self.operands.prepacked

    @property
    def grouped(self) -> bool:
        """Whether activations have scales in groups."""
        return self.operands.grouped

    @property
    def out_dtype(self) -> DType:
        """Dtype of the result."""
        return self.epilogue.out_dtype

    @property
    def operand_dtype(self) -> DType:
        """The dtype of A as a call passes it; codes of fewer than 8 bits come as bytes."""
        if self.pair.a_format is None and not self.is_folded:
            return self.out_dtype
        return DType.E4M3 if self.pair.a_bits == 8 else DType.U8

    @property
    def group_size(self) -> int:
        """Weights along K that share a scale."""
        return self.pair.b_format.group

    @property
    def is_folded(self) -> bool:
        """Whether A has numbers of e4m3."""
        return self.pair in FOLDED_PAIRS

    @property
    def k_multiple(self) -> int:
        """Number of which K is a multiple."""
        return 1


@dataclass(frozen=True, kw_only=True)
class _HopperConfig(_Common):
    """The fields of kernels that upcast or fold codes."""

    splits: int = 1
    """CTAs of a cluster that share one tile, each with a slice of K: a launch setting."""
    arch: Arch = Arch.SM90A
    sms: ClassVar[int] = 1

    @property
    def compiled(self) -> Self:
        """The same machine code with K in one slice."""
        return replace(self, splits=1)


@dataclass(frozen=True, kw_only=True)
class FewConfig(_HopperConfig):
    """A kernel that upcasts codes to 16 bits in registers, for a small M.

    Codes become the same type as in a `ManyConfig` of pieces, but those of nvfp4 become f16.
    """

    design: FewDesign
    tag: ClassVar[str] = "widenedfew"

    @property
    def in_words(self) -> bool:
        """Whether both operands have eight codes in a word, which both take in the same order."""
        return self.pair in WORD_PAIRS

    @property
    def stage_columns(self) -> int:
        """Columns of a stage: of 4-bit codes that TMA brings 128 bytes, else as many as a warp multiplies at a time."""
        by_tma = self.design.main_loop is FewLoop.TMA
        return 2 * RING_COLUMNS if by_tma and self.pair in FP4_PAIRS else RING_COLUMNS

    @property
    def k_multiple(self) -> int:
        """Number of which K is a multiple: stages are whole, and a lane loads 32 columns of both operands in words."""
        return self.stage_columns if self.design.stages else 32 if self.in_words else 1

    @property
    def stages_bytes(self) -> int:
        """Bytes of all warps' stages: codes and scales of 64 rows of weights, and of A's rows.

        TMA brings 16 bytes that have a row's scales. Else A's 16-bit numbers lie 16 bytes further after each 512.
        """
        d, bits = self.design, self.pair.b_format.code.bits
        if d.main_loop is FewLoop.TMA:
            of_weights = SIDE * (self.stage_columns * bits // 8 + 16)
            return d.warps * d.stages * (of_weights + d.tile_m * self.stage_columns * 2)
        of_codes = 8 * RING_COLUMNS * bits // 8 + 128
        of_eight = of_codes if self.pair in CODE_PAIRS else 4 * 528
        stage = 8 * of_codes + d.tile_m // 8 * of_eight
        return d.warps * d.stages * (-(-stage // 128) * 128)

    @property
    def shared_bytes(self) -> int:
        """Bytes of a CTA: stages, and where TMA fills them their barriers and room to align them."""
        d = self.design
        return self.stages_bytes + (8 * d.warps * d.stages + 1024 if d.main_loop is FewLoop.TMA else 0)

    @property
    def ctas_of_sm(self) -> int:
        """CTAs of a multiprocessor. Registers leave room for sixteen warps, or for twelve where columns are in order; stages
        have to fit into shared memory, of which each CTA takes 1 KB more."""
        of_registers = (16 if self.in_words else 12) // self.design.warps
        if not self.design.stages:
            return of_registers
        return min(of_registers, self.arch.shared_memory_bytes // (self.shared_bytes + 1024)) or 1


@dataclass(frozen=True, kw_only=True)
class ManyConfig(_HopperConfig):
    """A kernel that upcasts codes to 16 bits on their way to Hopper's tensor core, for a large M.

    Codes become bf16, or f16 with activations of f16.
    """

    design: ManyDesign
    tag: ClassVar[str] = "widened"

    @property
    def k_multiple(self) -> int:
        """Number of which K is a multiple: a thread loads a word's 32 columns, and two threads load a step ahead."""
        return {ManyLoop.PIECES: 1, ManyLoop.WORDS: 32, ManyLoop.AHEAD: SIDE}[self.design.main_loop]

    @property
    def ctas_of_sm(self) -> int:
        """CTAs of a multiprocessor that registers leave room for."""
        tile_m, tile_n = self.design.tile_mn
        if self.design.main_loop is ManyLoop.PIECES:
            return 4 if tile_m <= SIDE else 2
        return 1 if tile_m * tile_n > 128 * 128 else 2


@dataclass(frozen=True, kw_only=True)
class PackedConfig(_HopperConfig):
    """A kernel of packed 4-bit weights on Hopper, which upcasts them to bf16 or folds them into e4m3:
    kernels/gemm/packed_mm.cuh.
    """

    design: PackedDesign
    tag: ClassVar[str] = "fp4weight"

    def __post_init__(self) -> None:
        if not self.prepacked:
            raise ValueError(f"prepacked={self.prepacked} contradicts tag={self.tag}: its weights are packed in blocks")

    @property
    def block_columns(self) -> int:
        """Columns of a block of packed weights: those of 128 bytes of activations."""
        return BLOCK_COLUMNS if self.is_folded else SIDE

    @property
    def part_columns(self) -> int:
        """Columns that a group multiplies together; a warp takes half a block of 128."""
        return SIDE if self.design.group is Group.WARP else self.block_columns

    @property
    def turns(self) -> int:
        """Turns in which warps take stages."""
        columns = self.part_columns * self.design.k_groups * self.design.blocks
        return max(columns // STAGE_COLUMNS, 1) if self.design.group is Group.WARP else 1

    @property
    def stage_columns(self) -> int:
        """Columns of a stage, along K."""
        return self.part_columns * self.design.k_groups * self.design.blocks // self.turns

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage: weights, activations, and scales for each block."""
        (tile_m, tile_n), columns = self.design.tile_mn, self.stage_columns
        weights = tile_n * (columns // 2 + columns // self.group_size)
        scales = 4 * (tile_m + tile_n) * columns // self.block_columns if self.grouped else 0
        return weights + columns * tile_m * self.pair.a_bits // 8 + scales

    @property
    def sums(self) -> int:
        """Sums of a row of weights that a group keeps."""
        return self.design.tile_m * (2 if self.grouped else 1)

    @property
    def takes_registers(self) -> bool:
        """Whether its sums take registers that other threads give away: more than leave a thread the registers it needs."""
        return self.design.group is Group.WARPGROUP and self.sums > (64 if self.is_folded else 128)

    @property
    def ctas_of_sm(self) -> int:
        """CTAs that fit on a multiprocessor with their stages and the rest of their shared memory: two or one."""
        bytes_ = self.design.stages * self.stage_bytes + (4096 if self.is_folded else 2048)
        return 2 if not self.takes_registers and bytes_ <= self.arch.shared_by(2) else 1


@dataclass(frozen=True, kw_only=True)
class PairConfig(_Common):
    """A kernel of CUTLASS's block-scaled collectives on Blackwell."""

    design: PairDesign
    arch: Arch
    tag: ClassVar[str] = "blockscaled"
    splits: ClassVar[int] = 1
    ctas_of_sm: ClassVar[int] = 1

    @property
    def compiled(self) -> Self:
        """Itself: it has no run-time settings."""
        return self

    @property
    def sms(self) -> int:
        """Multiprocessors that multiply a tile together."""
        return 2 if self.design.sharing is Sharing.TWO_SM else 1

    @property
    def mixes(self) -> bool:
        """Whether the tensor core's instruction is that of codes of 4, 6 and 8 bits in any mix, each in a byte."""
        return self.pair.a_format == MXFP8

    @property
    def is_narrow(self) -> bool:
        """Whether a tile's columns take half of a tile of scales, which needs CUTLASS 4.5 or later (sm120f)."""
        return self.arch is Arch.SM120F and self.mixes and self.design.tile_mn[1] == NARROW

    @property
    def k_multiple(self) -> int:
        """Number of which K is a multiple. Where the other operand has codes of another width, TMA gives each code of
        fewer than 8 bits a byte, in pieces of 128.
        """
        return 128 if self.mixes and self.pair.b_format != MXFP8 else 1


AnyConfig = FewConfig | ManyConfig | PackedConfig | PairConfig
"""Every config of the family."""
