"""GatedConfig: one kernel that multiplies by gate and up weights, and ends with their activation."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import ClassVar

from gemmill.gemm.config import ACCUMULATOR_OF, Problem, Schedule
from gemmill.vocab import (
    Accumulation,
    Arch,
    Backend,
    DType,
    EpilogueKind,
    KernelSchedule,
    ScaleGranularity,
    ScaleLayout,
)
from gemmill.vocab.activation import Activation as Activation

OPERANDS = (DType.E4M3,)
GROUP = 128
"""Results of a row that share a scale.

It is also how many elements along K, and how many gates or ups, share a scale of the operands.
"""


class Result(StrEnum):
    """What a kernel stores."""

    BF16 = "bf16"
    STATIC = "e4m3static"
    """codes, by a scale that is given"""
    GROUP = "e4m3group128"
    """codes, and a scale for each GROUP of a row"""

    @property
    def dtype(self) -> DType:
        """Type of an element."""
        return DType.BF16 if self is Result.BF16 else DType.E4M3


@dataclass(frozen=True, kw_only=True)
class GatedConfig:
    """One variant. Its launch has no settings: the grid follows from the call's sizes."""

    dtype: DType
    """Type of A and of the weights."""
    result: Result
    activation: Activation
    tile_shape_mnk: tuple[int, int, int]
    """The tile of the kernel as compiled. With swap_ab, M counts rows of the weights, which are gates and ups."""
    cluster_shape_mnk: tuple[int, int, int] = (1, 1, 1)
    kernel_schedule: KernelSchedule
    accumulation: Accumulation
    swap_ab: bool = False
    """Whether the weights fill the tensor core's 64 rows, so that few rows of A waste nothing."""
    stages: int | None = None
    """Stages of the main loop; None for as many as fit."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "gatedmm"
    backend: ClassVar[Backend] = Backend.CUTEDSL
    group_size: ClassVar[int] = 0
    """Elements along K that share a scale of the operands; 0: scales of rows and columns."""
    by_expert: ClassVar[bool] = False
    """Whether rows belong to experts, each with weights of its own."""
    indexed: ClassVar[bool] = False
    """Whether rows of A are gathered by their numbers as they are loaded."""

    def __post_init__(self) -> None:
        if min(self.tile_shape_mnk) < 1 or min(self.cluster_shape_mnk) < 1:
            raise ValueError(f"tile {self.tile_shape_mnk} and cluster {self.cluster_shape_mnk} must be positive")
        if self.dtype not in OPERANDS:
            raise ValueError(f"dtype={self.dtype}: gated kernels multiply {' or '.join(OPERANDS)}")

    @property
    def compiled(self) -> "GatedConfig":
        """Itself: nothing is left to the launch."""
        return self

    @cached_property
    def problem(self) -> Problem:
        """The product, in the terms of a GEMM that stores it."""
        return Problem(
            a_dtype=self.dtype,
            b_dtype=self.dtype,
            accumulator_dtype=ACCUMULATOR_OF[self.dtype],
            out_dtype=DType.BF16,
            epilogue=EpilogueKind.SCALED,
            a_scale=ScaleGranularity.GROUP if self.group_size else ScaleGranularity.CHANNEL,
            b_scale=ScaleGranularity.GROUP if self.group_size else ScaleGranularity.CHANNEL,
            scale_layout=ScaleLayout.STRIDED if self.group_size else ScaleLayout.VECTOR,
            group_size=self.group_size,
        )

    @cached_property
    def schedule(self) -> Schedule:
        """How it is computed, in the terms of a GEMM."""
        return Schedule(
            tile_shape_mnk=self.tile_shape_mnk,
            cluster_shape_mnk=self.cluster_shape_mnk,
            kernel_schedule=self.kernel_schedule,
            accumulation=self.accumulation,
            swap_ab=self.swap_ab,
            stages=self.stages,
        )


@dataclass(frozen=True, kw_only=True)
class GroupGatedConfig(GatedConfig):
    """A gated kernel of operands whose scales change along K.

    A scale of A belongs to 1 x GROUP, a scale of the weights to GROUP gates or ups x GROUP. Rows of packed weights are
    gates and ups in turns. So the main loop gives each row its block's scale, as if it were the row's own.
    """

    tag: ClassVar[str] = "gatedgroupmm"
    group_size: ClassVar[int] = GROUP

    @property
    def compiled(self) -> "GroupGatedConfig":
        """Itself: nothing is left to the launch."""
        return self


@dataclass(frozen=True, kw_only=True)
class ExpertGatedConfig(GatedConfig):
    """A gated kernel of rows that belong to experts: their counts are on the device (gemmill.gemm.experts)."""

    tag: ClassVar[str] = "gatedexpertmm"
    by_expert: ClassVar[bool] = True

    @property
    def compiled(self) -> "ExpertGatedConfig":
        """Itself: nothing is left to the launch."""
        return self


@dataclass(frozen=True, kw_only=True)
class ExpertGroupGatedConfig(GroupGatedConfig):
    """A gated kernel of rows of experts, and of operands whose scales change along K."""

    tag: ClassVar[str] = "gatedexpertgroupmm"
    by_expert: ClassVar[bool] = True

    @property
    def compiled(self) -> "ExpertGroupGatedConfig":
        """Itself: nothing is left to the launch."""
        return self


@dataclass(frozen=True, kw_only=True)
class GatheredGatedConfig(ExpertGatedConfig):
    """A gated kernel of rows of experts that are gathered by their numbers as they are loaded."""

    tag: ClassVar[str] = "gatedgatheredmm"
    indexed: ClassVar[bool] = True

    @property
    def compiled(self) -> "GatheredGatedConfig":
        """Itself: nothing is left to the launch."""
        return self


@dataclass(frozen=True, kw_only=True)
class GatheredGroupGatedConfig(ExpertGroupGatedConfig):
    """A gated kernel of gathered rows, and of operands whose scales change along K."""

    tag: ClassVar[str] = "gatedgatheredgroupmm"
    indexed: ClassVar[bool] = True

    @property
    def compiled(self) -> "GatheredGroupGatedConfig":
        """Itself: nothing is left to the launch."""
        return self


@dataclass(frozen=True, kw_only=True)
class UnalignedGatedConfig:
    """A gated kernel for operands that TMA does not take: any rows, strides and addresses. The activation is told at
    run time."""

    dtype: DType
    """Type of A and of the weights."""
    result: Result
    arch: Arch = Arch.SM90A
    group_size: ClassVar[int] = 0
    by_expert: ClassVar[bool] = False
    indexed: ClassVar[bool] = False
    tag: ClassVar[str] = "gatedunaligned"
    backend: ClassVar[Backend] = Backend.CUTLASS
    tile_shape_mnk: ClassVar[tuple[int, int, int]] = (64, 64, 64)

    def __post_init__(self) -> None:
        if self.dtype not in OPERANDS:
            raise ValueError(f"dtype={self.dtype}: gated kernels multiply {' or '.join(OPERANDS)}")

    @property
    def compiled(self) -> "UnalignedGatedConfig":
        """Itself: nothing is left to the launch."""
        return self


AnyConfig = GatedConfig | UnalignedGatedConfig
