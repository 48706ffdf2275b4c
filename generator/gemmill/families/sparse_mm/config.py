"""SparseConfig: one GEMM of 2:4 sparse weights."""

from dataclasses import dataclass, replace
from typing import ClassVar

from gemmill.gemm.config import ACCUMULATOR_OF
from gemmill.vocab import Accumulation, Arch, Backend, DType, EpilogueKind, KernelSchedule, RasterOrder

OPERANDS = (DType.E4M3, DType.S8, DType.BF16, DType.F16)


@dataclass(frozen=True, kw_only=True)
class SparseConfig:
    """One variant.

    It computes the transpose, since the sparse operand is the tensor core's first: weights are its rows.
    """

    dtype: DType
    """Type of a and of the weights."""
    out_dtype: DType
    epilogue: EpilogueKind
    tile_shape_mnk: tuple[int, int, int]
    """The tile of the kernel as compiled. M counts rows of the weights, N rows of a, K elements before compression."""
    cluster_shape_mnk: tuple[int, int, int] = (1, 1, 1)
    kernel_schedule: KernelSchedule
    accumulation: Accumulation
    stages: int | None = None
    """Stages of the main loop; None for as many as fit."""
    raster_order: RasterOrder = RasterOrder.HEURISTIC
    """The order of tiles. It is set at launch, as is `swizzle`: neither costs a compilation."""
    swizzle: int = 1
    """Width in tiles of the band that CTAs sweep: 1, 2, 4 or 8."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "sparsemm"
    backend: ClassVar[Backend] = Backend.CUTLASS
    group_size: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if min(self.tile_shape_mnk) < 1 or min(self.cluster_shape_mnk) < 1:
            raise ValueError(f"tile {self.tile_shape_mnk} and cluster {self.cluster_shape_mnk} must be positive")
        if self.dtype not in OPERANDS:
            raise ValueError(f"dtype={self.dtype}: sparse kernels multiply {', '.join(OPERANDS)}")
        if self.stages is not None and self.stages < 1:
            raise ValueError(f"stages={self.stages} must be positive, or None for automatic")

    @property
    def operand_dtype(self) -> DType:
        """Dtype of the operand that a call is asked by."""
        return self.dtype

    @property
    def compiled(self) -> "SparseConfig":
        """The same machine code with default launch settings."""
        return replace(self, raster_order=RasterOrder.HEURISTIC, swizzle=1)

    @property
    def accumulator_dtype(self) -> DType:
        """Type of sums."""
        return ACCUMULATOR_OF[self.dtype]
