"""The config of a grouped kernel."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from gemmill.family import OfOperands, WithoutSettings, any_of
from gemmill.formats.layout import BLOCK_COLUMNS, SIDE, STAGE_COLUMNS
from gemmill.gemm.config import ACCUMULATOR_OF, Design, steps_of
from gemmill.gemm.config import Operands as GemmOperands
from gemmill.gemm.expert_rows import MOST_EXPERTS as MOST_EXPERTS
from gemmill.gemm.traced import Traced
from gemmill.vocab import (
    Arch,
    Backend,
    DType,
    EpilogueKind,
    Format,
    ScaleGranularity,
    ScaleGroups,
    ScaleLayout,
)
from gemmill.vocab.format import MXFP4, NVFP4

SCALE_GROUPS = (
    ScaleGroups(size=128, b_scale=ScaleGranularity.BLOCK),
    ScaleGroups(size=32, b_scale=ScaleGranularity.BLOCK),
    ScaleGroups(size=32, b_scale=ScaleGranularity.GROUP),
)
"""The kinds of scales in groups, in the order in which classes of calls number them, from 1 on. Scales of an expert's weights
lie as the weights do: [N/size, K/size], or of rows [N, K/size]."""
OPERANDS = (DType.E4M3, DType.S8, DType.BF16, DType.F16)
"""Types of operands: those of 8 bits come with scales, those of 16 without."""
FP4_FORMATS = (NVFP4, MXFP4)
"""Formats of packed weights, in the order in which classes of calls number them, from 1 on."""
FP4_PAIRS = ((DType.BF16, NVFP4), (DType.BF16, MXFP4), (DType.E4M3, MXFP4))
"""Types of activations, and formats of the packed weights that they multiply."""


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The operands, and the type of results."""

    dtype: DType
    """Type of A and of the weights."""
    out_dtype: DType
    group_size: int = 0
    """Elements along K that share a scale.

    0: scales are per token and per channel, or 16-bit operands have none.
    """
    rows_scaled: bool = False
    """Whether each row of the weights has scales of its own along K, in place of one for as many rows as a group has elements."""
    indexed: bool = False
    """Whether the kernel gathers rows of A by their numbers as it loads them."""

    def __post_init__(self) -> None:
        if self.dtype not in OPERANDS:
            raise ValueError(f"dtype={self.dtype}: grouped kernels multiply {' or '.join(OPERANDS)}")
        if (self.group_size or self.rows_scaled) and self.scale_groups is None:
            of_b = [f"{groups.of_b}" for groups in SCALE_GROUPS]
            raise ValueError(
                f"group_size={self.group_size}, rows_scaled={self.rows_scaled}: scales of weights in groups are of "
                f"{any_of(of_b)}, or group_size is 0 for all of K"
            )

    @property
    def scale_groups(self) -> ScaleGroups | None:
        """The kind of scales in groups; None where there are none."""
        b_scale = ScaleGranularity.GROUP if self.rows_scaled else ScaleGranularity.BLOCK
        return next(
            (groups for groups in SCALE_GROUPS if (groups.size, groups.b_scale) == (self.group_size, b_scale)), None
        )

    @property
    def scaled(self) -> bool:
        """Whether operands come with scales."""
        return self.dtype.bits < 16


@dataclass(frozen=True, kw_only=True)
class Epilogue:
    """The operations on sums."""

    biased: bool = False
    """Whether they end with an alpha of their expert and with a bias of its columns."""


@dataclass(frozen=True, kw_only=True)
class UnpackedConfig(OfOperands, WithoutSettings):
    """A kernel whose weights have the type of A. Its launch has no settings: the grid follows from sizes that the host knows."""

    operands: Operands
    epilogue: Epilogue = Epilogue()
    arch: Arch = Arch.SM90A
    format: ClassVar[Format | None] = None

    @property
    def rows_scaled(self) -> bool:
        """Whether each row of the weights has scales of its own along K."""
        return self.operands.rows_scaled

    @property
    def scale_groups(self) -> ScaleGroups | None:
        """The kind of scales in groups."""
        return self.operands.scale_groups

    @property
    def biased(self) -> bool:
        """Whether it serves calls with alpha or bias, and no others."""
        return self.epilogue.biased


@dataclass(frozen=True, kw_only=True)
class UnalignedGroupedConfig(UnpackedConfig):
    """A kernel for operands that TMA does not take: any N, K, strides and addresses, rows in order or gathered."""

    tag: ClassVar[str] = "groupedunaligned"
    backend: ClassVar[Backend] = Backend.CUTLASS
    gathers: ClassVar[tuple[bool, ...]] = (False, True)
    """Whether rows of A come in order, by their numbers, or both ways."""
    tile_shape_mnk: ClassVar[tuple[int, int, int]] = (64, 64, 64)
    """Tile of 8-bit operands; with groups of 32 a step is of one group."""


@dataclass(frozen=True, kw_only=True)
class GroupedConfig(UnpackedConfig):
    """A kernel whose operands travel by TMA: rows of a, b and out begin at multiples of 16 bytes."""

    design: Design
    tag: ClassVar[str] = "groupedmm"
    backend: ClassVar[Backend] = Backend.CUTEDSL

    @property
    def gathers(self) -> tuple[bool, ...]:
        """Whether rows of A come in order, or by their numbers."""
        return (self.operands.indexed,)

    @cached_property
    def gemm_operands(self) -> GemmOperands:
        """Its computation, in the terms of one GEMM."""
        x, groups = self.operands, self.operands.scale_groups
        return GemmOperands(
            a_dtype=x.dtype,
            b_dtype=x.dtype,
            accumulator_dtype=ACCUMULATOR_OF[x.dtype],
            out_dtype=x.out_dtype,
            a_scale=ScaleGranularity.CHANNEL if groups is None else ScaleGranularity.GROUP,
            b_scale=ScaleGranularity.CHANNEL if groups is None else groups.b_scale,
            scale_layout=ScaleLayout.VECTOR if groups is None else ScaleLayout.STRIDED,
            group_size=x.group_size,
        )

    @property
    def traced(self) -> Traced:
        """The steps of the epilogue of that GEMM."""
        return steps_of(self.gemm_operands, EpilogueKind.SCALED_BIAS if self.biased else EpilogueKind.SCALED)


@dataclass(frozen=True, kw_only=True)
class PackedGroupedConfig(WithoutSettings):
    """A kernel of packed 4-bit weights, rows in order or gathered: kernels/gemm/packed_grouped_mm.cuh."""

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
    rows_scaled: ClassVar[bool] = False
    scale_groups: ClassVar[ScaleGroups | None] = None
    biased: ClassVar[bool] = False
    gathers: ClassVar[tuple[bool, ...]] = (False, True)

    @property
    def operand_dtype(self) -> DType:
        """Dtype of the operand that identifies a call."""
        return self.dtype

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
        return 2 if self.tile_m <= SHARING_ROWS and self.shared_bytes <= self.arch.shared_by(2) else 1


SHARING_ROWS = 64
"""Rows of A in a tile, at most, whose sums leave room for a second CTA."""
MEETING_ROWS = 16
"""Rows of A whose sums groups of 128 threads lay out for storing at a time."""
AnyConfig = GroupedConfig | UnalignedGroupedConfig | PackedGroupedConfig
