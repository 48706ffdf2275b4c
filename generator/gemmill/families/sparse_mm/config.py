"""SparseConfig: one GEMM of 2:4 sparse weights."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from gemmill.family import OfOperands
from gemmill.gemm.config import ACCUMULATOR_OF, Design
from gemmill.vocab import Arch, Backend, DType, EpilogueKind, RasterOrder

OPERANDS = (DType.E4M3, DType.S8, DType.BF16, DType.F16)


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The operands, and the type of results."""

    dtype: DType
    """Type of a and of the weights."""
    out_dtype: DType

    def __post_init__(self) -> None:
        if self.dtype not in OPERANDS:
            raise ValueError(f"dtype={self.dtype}: sparse kernels multiply {', '.join(OPERANDS)}")


@dataclass(frozen=True, kw_only=True)
class SparseConfig(OfOperands):
    """One variant. It computes the transpose, since the sparse operand is the tensor core's first: weights are its rows."""

    operands: Operands
    design: Design
    """With swap_ab: M of the tile counts rows of the weights, N rows of a. K counts elements before compression."""
    epilogue: EpilogueKind
    raster_order: RasterOrder = RasterOrder.HEURISTIC
    """The order of tiles. It is set at launch, as is `swizzle`: neither costs a compilation."""
    swizzle: int = 1
    """Width in tiles of the band that CTAs sweep: 1, 2, 4 or 8."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "sparsemm"
    backend: ClassVar[Backend] = Backend.CUTLASS
    group_size: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if not self.design.swap_ab:
            raise ValueError(f"swap_ab={self.design.swap_ab}: the sparse operand is the tensor core's first")

    @property
    def compiled(self) -> Self:
        """The same machine code with default launch settings."""
        return replace(self, raster_order=RasterOrder.HEURISTIC, swizzle=1)

    @property
    def accumulator_dtype(self) -> DType:
        """Type of sums."""
        return ACCUMULATOR_OF[self.operand_dtype]
