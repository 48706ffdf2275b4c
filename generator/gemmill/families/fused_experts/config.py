"""ExpertsConfig: one kind of kernels for fused experts."""

from dataclasses import dataclass
from typing import ClassVar

from gemmill.families.fused_experts.main_loop import LOOPS, Body, ExpertLoop
from gemmill.families.fused_experts.packing import PACKING_NAMES, PACKINGS, SPARSE_GROUPS, Packing
from gemmill.family import OfOperands, WithoutSettings
from gemmill.formats.layout import BLOCK_COLUMNS, SIDE, STAGE_COLUMNS
from gemmill.vocab import Arch, Backend, DType, Format
from gemmill.vocab.format import MXFP4, NVFP4

GROUP = 128
"""Elements of a row, and rows of weights, that share a scale where scales come in groups."""
BESIDE_STAGES = 6144
"""Bytes of shared memory that lists, barriers and the alignment of stages of packed weights take, apart from sums."""
FINE_GROUP = 32
"""The same of finer groups, as DeepSeek V4.1's experts have them; grouped GEMMs multiply them."""
GROUPS = (GROUP, FINE_GROUP)
"""Both, in the order in which classes of calls number them, from 1 on."""
MOST_WEIGHTS = 512
"""Experts that a CTA sorts by, one a thread."""
CODED = DType.E4M3
"""Type of weights that multiply codes of activations; other weights have the type of activations."""
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


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The operands of both products."""

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
    """The design of the kernel."""

    tile_tokens: int
    """Rows of an expert that a CTA takes together."""
    streamed: bool = False
    """Whether TMA streams weights to groups of 128 threads, which multiply (WGMMA); else warps do."""
    apart: bool = False
    """Whether grouped GEMMs of the family grouped_mm compute both products, in launches of their own."""

    def __post_init__(self) -> None:
        if self.streamed and self.apart:
            raise ValueError("streamed=True, apart=True: grouped GEMMs stream weights, or kernels of experts do")


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig(OfOperands, WithoutSettings):
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
    def tile_tokens(self) -> int:
        """Rows of an expert that a CTA takes together."""
        return self.design.tile_tokens

    @property
    def streamed(self) -> bool:
        """Whether TMA streams weights to groups of 128 threads."""
        return self.design.streamed

    @property
    def apart(self) -> bool:
        """Whether grouped GEMMs compute both products."""
        return self.design.apart

    @property
    def is_coded(self) -> bool:
        """Whether activations become codes."""
        return self.dtype is CODED


@dataclass(frozen=True, kw_only=True)
class PackedOperands:
    """The operands of both products: packed 4-bit weights."""

    format: Format
    """Format of the weights."""
    sparse_group: int = 0
    """Columns that share a scale of 2:4 sparse weights; 0 for dense ones."""
    activations: DType = DType.BF16
    """The type of the other operand: bf16, or e4m3, into which weights fold."""

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
    """The design of a kernel for packed weights."""

    tile_tokens: int
    """Rows of an expert that a CTA takes together; rows of weights and stages follow from them."""
    main_loop: ExpertLoop = ExpertLoop.GATHERED


@dataclass(frozen=True, kw_only=True)
class PackedExpertsConfig(WithoutSettings):
    """Three kernels for packed 4-bit weights: kernels/fused_experts/packed_experts.cuh. x and results are bf16."""

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
        """The type of the operand that multiplies weights."""
        return self.operands.activations

    @property
    def tile_tokens(self) -> int:
        """Rows of an expert that a CTA takes together."""
        return self.design.tile_tokens

    @property
    def main_loop(self) -> ExpertLoop:
        """The path of an expert's rows to the warps that multiply them."""
        return self.design.main_loop

    @property
    def operand_dtype(self) -> DType:
        """Dtype of the operand that identifies a call."""
        return self.dtype

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
        found: dict[int, int] = {}
        for body in LOOPS[self.main_loop]:
            found |= body.stages.get(self.packing, {})
        return found

    @property
    def body(self) -> Body:
        """The kernel that the tile is of. Raises StopIteration where there is no such tile."""
        return next(body for body in LOOPS[self.main_loop] if self.tile_tokens in body.stages.get(self.packing, {}))

    @property
    def by_warps(self) -> bool:
        """Whether warps multiply alone, few tokens each."""
        return self.body.by_warps

    @property
    def stages(self) -> int:
        """Stages of the main loop: a tile's, or those of warps that fit."""
        most = self.tiles[self.tile_tokens]
        if not self.by_warps:
            return most
        row_groups = self.body.row_groups[self.tile_tokens]
        sums = 4 * self.stage_parts * self.tile_tokens * (row_groups * SIDE + 4)
        part = row_groups * self.packing.block_bytes + 2 * SIDE * self.tile_tokens
        return min(most, (self.arch.shared_memory_bytes - sums - BESIDE_STAGES) // (self.stage_parts * part))

    @property
    def stage_parts(self) -> int:
        """Blocks of 64 columns in a stage; of 128 for folded weights."""
        if self.is_coded:
            return 1
        return (STAGE_COLUMNS if self.by_warps else BLOCK_COLUMNS) // SIDE

    @property
    def loaders(self) -> int:
        """Threads that load: four warps where a CTA is alone on a multiprocessor."""
        return 32 if self.tile_tokens <= 64 else 128


AnyConfig = ExpertsConfig | PackedExpertsConfig
