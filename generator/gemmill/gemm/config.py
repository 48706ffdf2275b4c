"""The computation of a GEMM and its design: the parts of a config that families of GEMMs share."""

from dataclasses import dataclass
from typing import Protocol

from gemmill.gemm.standard import standard
from gemmill.gemm.traced import Kind, Traced
from gemmill.vocab import (
    Accumulation,
    Arch,
    Backend,
    DType,
    EpilogueKind,
    KernelSchedule,
    MainLoop,
    ScaleGranularity,
    ScaleGroups,
    ScaleLayout,
    TileScheduler,
)

ACCUMULATOR_OF = {DType.E4M3: DType.F32, DType.S8: DType.S32, DType.BF16: DType.F32, DType.F16: DType.F32}
RESULTS_OF = {
    DType.E4M3: (DType.BF16, DType.F16),
    DType.S8: (DType.BF16, DType.F16),
    DType.BF16: (DType.BF16,),
    DType.F16: (DType.F16,),
}
"""The types of results, by operand: 16 bits, which the next layer reads; for 16-bit operands their own type."""
GROUPED = (ScaleGranularity.GROUP, ScaleGranularity.BLOCK)


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The operands of a GEMM, and the type of results: D[M, N] = epilogue(A[M, K] B[K, N]). A is row-major, B
    column-major, D row-major.
    """

    a_dtype: DType
    b_dtype: DType
    accumulator_dtype: DType
    out_dtype: DType
    a_scale: ScaleGranularity = ScaleGranularity.CHANNEL
    b_scale: ScaleGranularity = ScaleGranularity.CHANNEL
    scale_layout: ScaleLayout = ScaleLayout.VECTOR
    group_size: int = 0
    """Elements along K that share a scale; 0 where scales are per tensor or per channel."""

    def __post_init__(self) -> None:
        grouped = self.a_scale in GROUPED or self.b_scale in GROUPED
        if grouped != bool(self.group_size):
            raise ValueError(
                f"group_size={self.group_size} contradicts a_scale={self.a_scale} b_scale={self.b_scale}: "
                "a group size is given exactly when a scale is grouped"
            )
        if grouped == (self.scale_layout is ScaleLayout.VECTOR):
            raise ValueError(
                f"scale_layout={self.scale_layout} contradicts a_scale={self.a_scale} b_scale={self.b_scale}: "
                "scales per tensor or per channel are vectors, grouped ones are mnmajor or strided"
            )
        expected = ACCUMULATOR_OF.get(self.a_dtype)
        if expected is not None and expected is not self.accumulator_dtype:
            raise ValueError(
                f"accumulator_dtype={self.accumulator_dtype} contradicts a_dtype={self.a_dtype}: it is {expected}"
            )

    @property
    def scale_groups(self) -> ScaleGroups | None:
        """The groups that scales come in; None where they are per tensor or per channel."""
        return ScaleGroups(size=self.group_size, b_scale=self.b_scale) if self.group_size else None


def steps_of(operands: Operands, epilogue: EpilogueKind) -> Traced:
    """The operations of an epilogue on a sum over all of K. The main loop has applied scales in groups before."""
    integers = operands.accumulator_dtype is DType.S32 and not operands.group_size
    return standard(epilogue, Kind.S32 if integers else Kind.F32, with_scales=not operands.group_size)


@dataclass(frozen=True, kw_only=True)
class Design:
    """The design of a GEMM: everything that changes the machine code."""

    tile_shape_mnk: tuple[int, int, int]
    """Output tile and K step of one CTA (of the kernel as compiled: with swap_ab, M counts columns of D)."""
    cluster_shape_mnk: tuple[int, int, int] = (1, 1, 1)
    kernel_schedule: KernelSchedule
    accumulation: Accumulation
    tile_scheduler: TileScheduler = TileScheduler.PERSISTENT
    main_loop: MainLoop = MainLoop.STANDARD
    swap_ab: bool = False
    """Whether the kernel computes the transpose: B's columns fill the tensor core's 64 rows, so that a small M wastes
    nothing.
    """
    stages: int | None = None
    """Shared-memory stages of the main loop; None fills the memory that the epilogue leaves."""
    slice_step: int | None = None
    """Elements along K of which slices are multiples, where K is divided; None: those of a K step. Kernels of different depth
    deal K alike with one step."""
    partial_sets: int = 2
    """Sets of partial sums that a kernel of groups of one WGMMA has by turns: one is promoted while the others are multiplied."""
    alignment_a: int = 16
    """Elements: every row of A starts at a multiple of this many."""
    alignment_b: int = 16
    alignment_d: int = 8

    def __post_init__(self) -> None:
        if min(self.tile_shape_mnk) < 1 or min(self.cluster_shape_mnk) < 1:
            raise ValueError(f"tile {self.tile_shape_mnk} and cluster {self.cluster_shape_mnk} must be positive")
        if self.stages is not None and self.stages < 1:
            raise ValueError(f"stages={self.stages} must be positive, or None for automatic")


class GemmConfig(Protocol):
    """A variant of a GEMM, of whatever family."""

    @property
    def gemm_operands(self) -> Operands:
        """Its operands and the type of its stored results, in the terms of one GEMM."""

    @property
    def traced(self) -> Traced:
        """The steps of its epilogue."""

    @property
    def design(self) -> Design:
        """Its design."""

    @property
    def arch(self) -> Arch:
        """Its architecture."""

    @property
    def backend(self) -> Backend:
        """The compiler and language of its kernel."""
