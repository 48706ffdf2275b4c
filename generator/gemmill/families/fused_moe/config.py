"""ExpertsConfig: one kind of kernels for fused experts."""

from dataclasses import dataclass
from typing import ClassVar

from gemmill.families.fused_moe.packing import PACKING_NAMES, PACKINGS, SPARSE_GROUPS, Packing
from gemmill.formats.layout import BLOCK_COLUMNS, SIDE, STAGE_COLUMNS
from gemmill.vocab import Arch, Backend, DType, Format
from gemmill.vocab.format import MXFP4, NVFP4

GROUP = 128
"""Elements of a row, and rows of weights, that share a scale where scales come in groups."""
FINE_GROUP = 32
"""The same of finer groups, as DeepSeek V4.1's experts have them; grouped GEMMs multiply them."""
GROUPS = (GROUP, FINE_GROUP)
"""Both, in the order in which classes of calls number them, from 1 on."""
MOST_WEIGHTS = 512
"""Experts that a CTA sorts by, one a thread."""
CODED = DType.E4M3
"""Type of weights that are multiplied by codes of activations; other weights have the type of activations."""
HALVES = (DType.BF16, DType.F16)
"""Types of activations and results."""
TILES = (8, 16, 32)
"""Rows of an expert that a CTA takes together."""
STREAMED_TILES = (8, 16, 32, 64)
"""The same of kernels whose groups of 128 threads multiply."""
APART_TILE = 128
"""The same of grouped GEMMs, at most."""
FP4_FORMATS = (NVFP4, MXFP4)
"""Formats of packed weights."""
WARP_TILES = {8: 7, 16: 5}
"""Stages of tiles of 64 rows of weights, which four warps multiply, by an expert's rows."""
WIDE_TILES = {8: 4}
"""The same of tiles of 128 rows of weights, which eight warps multiply."""
GROUP_TILES = {32: 5, 64: 4, 128: 5}
"""The same of tiles of 128 rows of weights, by two groups of 128 threads."""
SPARSE_WARP_TILES, SPARSE_WIDE_TILES, SPARSE_GROUP_TILES = {8: 8, 16: 5}, {8: 5}, {32: 6, 64: 4, 128: 5}
FOLDED_TILES = {16: 8, 32: 6, 64: 5, 128: 6}
"""Of weights that are folded: groups of 128 threads alone multiply e4m3."""
BOXED_TILES = {16: 7, 64: 6}
"""Of rows in order that come in boxes: kernels/fused_moe/boxed_experts.cuh. Tiles are wide: 128 or 256 rows of weights."""
TALL_TILES, ROUNDED_TALL_TILES, BOXES = {256: 5}, {256: 4}, {256: (64, 1)}
"""Of rows in order and weights that are folded: kernels/fused_moe/tall_experts.cuh. Tables of nvfp4 take the room of a stage.

Boxes have the rows that are loaded and multiplied together, and CTAs on a multiprocessor.
"""
HANDED_TILES, ROUNDED_HANDED_TILES = {8: 5, 16: 4}, {8: 4, 16: 3}
"""The same of few rows, in stages of two blocks: kernels/fused_moe/handed_experts.cuh."""
MANY_TILES, MANY_CTAS = {32: 7, 112: 8, 224: 4}, {32: 2, 112: 1, 224: 1}
"""The same with endings by warps that do not multiply, and CTAs on a multiprocessor: kernels/fused_moe/many_experts.cuh."""


@dataclass(frozen=True, kw_only=True)
class Operands:
    """What is multiplied."""

    dtype: DType
    """Type of weights."""
    out_dtype: DType
    """Type of x and of the result."""
    group_size: int = 0
    """Elements of a row, and rows of weights, that share a scale. 0: scales are of whole rows, or 16-bit weights have
    none."""

    def __post_init__(self) -> None:
        if self.dtype not in (CODED, *HALVES) or self.out_dtype not in HALVES:
            raise ValueError(
                f"dtype={self.dtype}, out_dtype={self.out_dtype}: weights are {CODED}, bf16 or f16, results bf16 or f16"
            )
        if self.group_size not in (0, *GROUPS):
            raise ValueError(
                f"group_size={self.group_size}: scales are of {GROUP} or {FINE_GROUP}, or 0 for whole rows"
            )


@dataclass(frozen=True, kw_only=True)
class Design:
    """How it is multiplied."""

    tile_tokens: int
    """Rows of an expert that a CTA takes together."""
    streamed: bool = False
    """Whether TMA streams weights to groups of 128 threads, which multiply (WGMMA); else warps do."""
    apart: bool = False
    """Whether both products are grouped GEMMs of the family moe, in launches of their own."""

    def __post_init__(self) -> None:
        if self.streamed and self.apart:
            raise ValueError("streamed=True, apart=True: grouped GEMMs stream weights, or kernels of experts do")


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """One variant: three kernels. Each call says its activation. A launch has no settings: grids follow from sizes."""

    operands: Operands
    design: Design
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "fusedexperts"
    backend: ClassVar[Backend] = Backend.CUTLASS
    format: ClassVar[Format | None] = None
    packing: ClassVar[Packing | None] = None

    @property
    def dtype(self) -> DType:
        """Type of weights."""
        return self.operands.dtype

    @property
    def out_dtype(self) -> DType:
        """Type of x and of the result."""
        return self.operands.out_dtype

    @property
    def group_size(self) -> int:
        """Elements that share a scale, or 0."""
        return self.operands.group_size

    @property
    def tile_tokens(self) -> int:
        """Rows of an expert that a CTA takes together."""
        return self.design.tile_tokens

    @property
    def streamed(self) -> bool:
        """Whether TMA streams weights to groups of 128 threads."""
        return self.design.streamed

    @property
    def apart(self) -> bool:
        """Whether both products are grouped GEMMs."""
        return self.design.apart

    @property
    def operand_dtype(self) -> DType:
        """Dtype of the operand that a call is asked by."""
        return self.dtype

    @property
    def compiled(self) -> "ExpertsConfig":
        """Itself: nothing is left to the launch."""
        return self

    @property
    def is_coded(self) -> bool:
        """Whether activations become codes."""
        return self.dtype is CODED


@dataclass(frozen=True, kw_only=True)
class PackedOperands:
    """What is multiplied: packed 4-bit weights."""

    format: Format
    """Format of the weights."""
    sparse_group: int = 0
    """Columns that share a scale of 2:4 sparse weights; 0 for dense ones."""
    activations: DType = DType.BF16
    """What weights are multiplied by: bf16, or e4m3, into which weights fold."""

    def __post_init__(self) -> None:
        if self.format not in FP4_FORMATS:
            raise ValueError(f"format={self.format}: packed weights are {' or '.join(map(str, FP4_FORMATS))}")
        if self.sparse_group not in (0, *SPARSE_GROUPS) or self.activations not in (DType.BF16, CODED):
            raise ValueError(
                f"sparse_group={self.sparse_group}, activations={self.activations}: groups of sparse weights are "
                f"{' or '.join(map(str, SPARSE_GROUPS))}, 0 for dense ones; activations are bf16 or {CODED}"
            )
        if self.packing not in PACKINGS:
            raise ValueError(f"weights packed as {self.packing}: there are {', '.join(PACKING_NAMES)}")

    @property
    def packing(self) -> Packing:
        """One of PACKINGS."""
        return Packing(format=self.format, sparse_group=self.sparse_group, is_coded=self.activations is CODED)


@dataclass(frozen=True, kw_only=True)
class PackedDesign:
    """How packed weights are multiplied."""

    tile_tokens: int
    """Rows of an expert that a CTA takes together; rows of weights and stages follow from them."""
    wide: bool = False
    """Whether eight warps take 128 rows of weights, where four take 64; of rows in order, whether these come in boxes."""
    ordered: bool = False
    """Whether the first launch leaves rows of x in the order of experts, where the first product else gathers them."""


@dataclass(frozen=True, kw_only=True)
class PackedExpertsConfig:
    """Three kernels for packed 4-bit weights: kernels/fused_moe/packed_experts.cuh. x and results are bf16."""

    operands: PackedOperands
    design: PackedDesign
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "fusedfp4experts"
    backend: ClassVar[Backend] = Backend.CUTLASS
    dtype: ClassVar[DType] = DType.U8
    out_dtype: ClassVar[DType] = DType.BF16
    group_size: ClassVar[int] = 0
    apart: ClassVar[bool] = False
    streamed: ClassVar[bool] = False

    @property
    def format(self) -> Format:
        """Format of the weights."""
        return self.operands.format

    @property
    def sparse_group(self) -> int:
        """Columns that share a scale of 2:4 sparse weights; 0 for dense ones."""
        return self.operands.sparse_group

    @property
    def activations(self) -> DType:
        """What weights are multiplied by."""
        return self.operands.activations

    @property
    def tile_tokens(self) -> int:
        """Rows of an expert that a CTA takes together."""
        return self.design.tile_tokens

    @property
    def wide(self) -> bool:
        """Whether a tile has twice as many rows of weights, or rows in order come in boxes."""
        return self.design.wide

    @property
    def ordered(self) -> bool:
        """Whether rows of x come in the order of experts."""
        return self.design.ordered

    @property
    def operand_dtype(self) -> DType:
        """Dtype of the operand that a call is asked by."""
        return self.dtype

    @property
    def compiled(self) -> "PackedExpertsConfig":
        """Itself: nothing is left to the launch."""
        return self

    @property
    def packing(self) -> Packing:
        """One of PACKINGS."""
        return self.operands.packing

    @property
    def is_coded(self) -> bool:
        """Whether activations become codes."""
        return self.activations is CODED

    @property
    def tiles(self) -> dict[int, int]:
        """Stages of each tile that there is, by its rows of an expert."""
        if self.ordered and self.is_coded:
            if self.wide:
                return {}
            few, tall = (
                (ROUNDED_HANDED_TILES, ROUNDED_TALL_TILES) if self.format == NVFP4 else (HANDED_TILES, TALL_TILES)
            )
            return few | tall | MANY_TILES
        if self.is_boxed:
            return BOXED_TILES
        if self.ordered:
            return SPARSE_GROUP_TILES if self.sparse_group else GROUP_TILES
        if self.is_coded:
            return {} if self.wide else FOLDED_TILES
        if self.wide:
            return SPARSE_WIDE_TILES if self.sparse_group else WIDE_TILES
        return SPARSE_WARP_TILES | SPARSE_GROUP_TILES if self.sparse_group else WARP_TILES | GROUP_TILES

    @property
    def by_warps(self) -> bool:
        """Whether warps multiply alone, few tokens each."""
        return not (self.is_coded or self.is_boxed) and self.tile_tokens in WARP_TILES

    @property
    def is_boxed(self) -> bool:
        """Whether rows come in boxes, of which a tile loads and multiplies those that it has."""
        return self.wide and self.ordered

    @property
    def tile_rows(self) -> int:
        """Rows of weights that a CTA takes together: 64 by four warps, 128 by two groups of 128 threads, 256 by four."""
        if self.is_boxed and self.tile_tokens not in WARP_TILES:
            return 4 * SIDE
        return SIDE if self.by_warps and not self.wide else 2 * SIDE

    @property
    def stages(self) -> int:
        """Stages of the main loop."""
        return self.tiles[self.tile_tokens]

    @property
    def stage_parts(self) -> int:
        """Blocks of 64 columns in a stage; of 128 where weights are folded."""
        if self.is_coded:
            return 1
        return (STAGE_COLUMNS if self.by_warps else BLOCK_COLUMNS) // SIDE

    @property
    def loaders(self) -> int:
        """Threads that load: four warps where a CTA is alone on a multiprocessor."""
        return 32 if self.tile_tokens <= 64 else 128


AnyConfig = ExpertsConfig | PackedExpertsConfig
