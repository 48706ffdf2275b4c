"""What a grouped kernel is."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from gemmill.formats.layout import BLOCK_COLUMNS, SIDE, STAGE_COLUMNS
from gemmill.gemm.config import ACCUMULATOR_OF, Problem, Schedule
from gemmill.gemm.expert_rows import MOST_EXPERTS as MOST_EXPERTS
from gemmill.vocab import (
    Accumulation,
    Arch,
    Backend,
    DType,
    EpilogueKind,
    Format,
    KernelSchedule,
    ScaleGranularity,
    ScaleLayout,
)
from gemmill.vocab.format import MXFP4, NVFP4

GROUP = 128
"""Elements along K, and columns of weights, that share a scale where scales come in groups."""
OPERANDS = (DType.E4M3, DType.S8, DType.BF16, DType.F16)
"""Types of operands: those of 8 bits come with scales, those of 16 without."""
FP4_FORMATS = (NVFP4, MXFP4)
"""Formats of packed weights, in the order in which classes of calls number them, from 1 on."""
FP4_PAIRS = ((DType.BF16, NVFP4), (DType.BF16, MXFP4), (DType.E4M3, MXFP4))
"""Types of activations, and formats of packed weights that they are multiplied by."""


@dataclass(frozen=True, kw_only=True)
class GroupedConfig:
    """One variant. Its launch has no settings: the grid follows from sizes that the host knows."""

    dtype: DType
    """Type of A and of the weights."""
    out_dtype: DType
    group_size: int = 0
    """Elements along K that share a scale of A; a scale of the weights is of as many columns, too.

    0: scales are per token and per channel, or 16-bit operands have none.
    """
    indexed: bool = False
    """Whether rows of A are gathered by their numbers as they are loaded."""
    tile_shape_mnk: tuple[int, int, int]
    """Tile of the kernel as compiled: with swap_ab, M counts columns of the weights."""
    cluster_shape_mnk: tuple[int, int, int] = (1, 1, 1)
    kernel_schedule: KernelSchedule
    accumulation: Accumulation
    swap_ab: bool = False
    """Whether the weights fill the tensor core's 64 rows, so that few rows of an expert waste nothing."""
    stages: int | None = None
    """Stages of the main loop; None for as many as fit."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "groupedmm"
    backend: ClassVar[Backend] = Backend.CUTEDSL
    format: ClassVar[Format | None] = None

    def __post_init__(self) -> None:
        if min(self.tile_shape_mnk) < 1 or min(self.cluster_shape_mnk) < 1:
            raise ValueError(f"tile {self.tile_shape_mnk} and cluster {self.cluster_shape_mnk} must be positive")
        if self.dtype not in OPERANDS:
            raise ValueError(f"dtype={self.dtype}: grouped kernels multiply {' or '.join(OPERANDS)}")
        if self.group_size not in (0, GROUP):
            raise ValueError(f"group_size={self.group_size}: scales are of {GROUP} along K, or 0 for all of it")

    @property
    def compiled(self) -> "GroupedConfig":
        """Itself: nothing is left to the launch."""
        return self

    @property
    def scaled(self) -> bool:
        """Whether operands come with scales."""
        return self.dtype.bits < 16

    @cached_property
    def problem(self) -> Problem:
        """What it computes, in the terms of one GEMM."""
        grouped = bool(self.group_size)
        return Problem(
            a_dtype=self.dtype,
            b_dtype=self.dtype,
            accumulator_dtype=ACCUMULATOR_OF[self.dtype],
            out_dtype=self.out_dtype,
            epilogue=EpilogueKind.SCALED,
            a_scale=ScaleGranularity.GROUP if grouped else ScaleGranularity.CHANNEL,
            b_scale=ScaleGranularity.BLOCK if grouped else ScaleGranularity.CHANNEL,
            scale_layout=ScaleLayout.STRIDED if grouped else ScaleLayout.VECTOR,
            group_size=self.group_size,
        )

    @cached_property
    def schedule(self) -> Schedule:
        """How it is computed, in the terms of one GEMM."""
        return Schedule(
            tile_shape_mnk=self.tile_shape_mnk,
            cluster_shape_mnk=self.cluster_shape_mnk,
            kernel_schedule=self.kernel_schedule,
            accumulation=self.accumulation,
            swap_ab=self.swap_ab,
            stages=self.stages,
        )


@dataclass(frozen=True, kw_only=True)
class UnalignedGroupedConfig:
    """A kernel for operands that TMA does not take: any N, K, strides and addresses, rows in order or gathered."""

    dtype: DType
    """Type of A and of the weights."""
    out_dtype: DType
    group_size: int = 0
    """Elements that share a scale, as in a `GroupedConfig`."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "groupedunaligned"
    backend: ClassVar[Backend] = Backend.CUTLASS
    format: ClassVar[Format | None] = None
    tile_shape_mnk: ClassVar[tuple[int, int, int]] = (64, 64, 64)
    """Tile of 8-bit operands."""

    def __post_init__(self) -> None:
        if self.dtype not in OPERANDS:
            raise ValueError(f"dtype={self.dtype}: grouped kernels multiply {' or '.join(OPERANDS)}")
        if self.group_size not in (0, GROUP):
            raise ValueError(f"group_size={self.group_size}: scales are of {GROUP} along K, or 0 for all of it")

    @property
    def compiled(self) -> "UnalignedGroupedConfig":
        """Itself: nothing is left to the launch."""
        return self

    @property
    def scaled(self) -> bool:
        """Whether operands come with scales."""
        return self.dtype.bits < 16


@dataclass(frozen=True, kw_only=True)
class PackedGroupedConfig:
    """A kernel of packed 4-bit weights, rows in order or gathered: kernels/moe/packed_grouped_mm.cuh."""

    dtype: DType
    """Type of A."""
    format: Format
    """Format of the weights."""
    out_dtype: DType = DType.BF16
    tile_m: int
    """Rows of A in a tile."""
    tile_n: int
    """Rows of weights in a tile: 64, or 64 for each of two groups of 128 threads.

    Of a tile with 64, four warps multiply a quarter of a stage's columns each.
    """
    stages: int
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "groupedfp4"
    backend: ClassVar[Backend] = Backend.CUTLASS
    group_size: ClassVar[int] = 0

    @property
    def compiled(self) -> "PackedGroupedConfig":
        """Itself: nothing is left to the launch."""
        return self

    @property
    def by_warps(self) -> bool:
        """Whether warps multiply alone, few tokens each."""
        return self.tile_n == SIDE

    @property
    def block_columns(self) -> int:
        """Columns of a block of weights."""
        return BLOCK_COLUMNS if self.dtype is DType.E4M3 else SIDE

    @property
    def stage_columns(self) -> int:
        """Columns of a stage, along K."""
        return STAGE_COLUMNS if self.by_warps else BLOCK_COLUMNS

    @property
    def loaders(self) -> int:
        """Threads that load: a group of warps where it is alone on a multiprocessor."""
        return 32 if self.tile_m <= SHARING_ROWS else 128

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage: weights with their scales, and activations."""
        weights = self.tile_n * (self.stage_columns // 2 + self.stage_columns // self.format.group)
        return weights + self.tile_m * self.stage_columns * self.dtype.bits // 8

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a CTA, at most."""
        sums = 4 * self.tile_m if self.by_warps else min(self.tile_m, MEETING_ROWS)
        return self.stages * self.stage_bytes + 4 * sums * (self.tile_n + 4) + 4 * MOST_EXPERTS + 2048

    @property
    def ctas_of_sm(self) -> int:
        """CTAs that fit on a multiprocessor: two or one."""
        return 2 if self.tile_m <= SHARING_ROWS and self.shared_bytes <= 113 * 1024 else 1


SHARING_ROWS = 64
"""Rows of A in a tile, at most, whose sums leave room for a second CTA."""
MEETING_ROWS = 16
"""Rows of A whose sums groups of 128 threads lay out for storing at a time."""
AnyConfig = GroupedConfig | UnalignedGroupedConfig | PackedGroupedConfig
