"""The config of a GEMM: Operands x Design x Epilogue (all that decides the machine code) x Launch (run-time settings)."""

from dataclasses import dataclass, field, replace
from typing import Self

from gemmill.family import OfOperands
from gemmill.gemm.config import ACCUMULATOR_OF, GROUPED, RESULTS_OF, Design, Operands, steps_of
from gemmill.gemm.traced import Traced
from gemmill.vocab import Arch, Backend, DType, EpilogueKind, RasterOrder

__all__ = ["ACCUMULATOR_OF", "GROUPED", "RESULTS_OF", "Design", "KernelConfig", "Launch", "Operands"]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Settings that the compiled kernel takes at run time: they cost no compilation."""

    raster_order: RasterOrder = RasterOrder.HEURISTIC
    swizzle: int = 1
    """Width in tiles of the band that CTAs sweep, for reuse in L2: 1, 2, 4 or 8."""
    splits: int = 1
    """Slices of K: 1 to 8 CTAs of a cluster have one each by the split_k scheduler, up to 16 CTAs by split_k_parallel, and one
    CTA has all of them by restarted."""


@dataclass(frozen=True, kw_only=True)
class KernelConfig(OfOperands):
    """One kernel variant."""

    operands: Operands
    design: Design
    epilogue: EpilogueKind
    launch: Launch = field(default_factory=Launch)
    arch: Arch = Arch.SM90A
    backend: Backend = Backend.CUTLASS

    @property
    def operand_dtype(self) -> DType:
        """Dtype of the operand that identifies a call."""
        return self.operands.a_dtype

    @property
    def gemm_operands(self) -> Operands:
        """The operands, and the type of results."""
        return self.operands

    @property
    def traced(self) -> Traced:
        """The steps of the epilogue."""
        return steps_of(self.operands, self.epilogue)

    @property
    def tag(self) -> str:
        """The field of its name that follows the architecture."""
        return self.backend.value

    @property
    def compiled(self) -> Self:
        """The same machine code with default launch settings: configs that share it share one compilation."""
        return replace(self, launch=Launch())
