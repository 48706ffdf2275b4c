"""The config of a GEMM: Problem (what is computed) x Schedule (how) x Launch (run-time settings) x Arch x Backend."""

from dataclasses import dataclass, field, replace

from gemmill.gemm.config import ACCUMULATOR_OF, GROUPED, RESULTS_OF, Problem, Schedule
from gemmill.vocab import Arch, Backend, RasterOrder

__all__ = ["ACCUMULATOR_OF", "GROUPED", "RESULTS_OF", "KernelConfig", "Launch", "Problem", "Schedule"]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Settings that the compiled kernel takes at run time: they cost no compilation."""

    raster_order: RasterOrder = RasterOrder.HEURISTIC
    swizzle: int = 1
    """Width in tiles of the band that CTAs sweep, for reuse in L2: 1, 2, 4 or 8."""
    splits: int = 1
    """CTAs of a cluster that share one tile of the split_k scheduler, each with a slice of K: 1 to 8."""


@dataclass(frozen=True, kw_only=True)
class KernelConfig:
    """One kernel variant."""

    problem: Problem
    schedule: Schedule
    launch: Launch = field(default_factory=Launch)
    arch: Arch = Arch.SM90A
    backend: Backend = Backend.CUTLASS

    @property
    def tag(self) -> str:
        """The field of its name that follows the architecture."""
        return self.backend.value

    @property
    def compiled(self) -> "KernelConfig":
        """The same machine code with default launch settings: configs that share it share one compilation."""
        return replace(self, launch=Launch())
