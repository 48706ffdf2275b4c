"""What a gated kernel of s8 is. Its classes are apart from those of e4m3, whose compiled kernels a change here leaves as
they are."""

from dataclasses import dataclass
from typing import ClassVar

from gemmill.families.gated_mm.config import OPERANDS, GatedConfig, UnalignedGatedConfig
from gemmill.vocab import DType

ALL_OPERANDS = (*OPERANDS, DType.S8)
"""Types of operands, of all gated kernels. Scales in groups come with e4m3 alone."""


def _check_dtype(dtype: DType) -> None:
    if dtype is not DType.S8:
        raise ValueError(f"dtype={dtype}: these gated kernels multiply {DType.S8}")


@dataclass(frozen=True, kw_only=True)
class Int8GatedConfig(GatedConfig):
    """A gated kernel of s8. Its sums are integers, converted to float32 before they are scaled."""

    tag: ClassVar[str] = "gatedint8mm"

    def __post_init__(self) -> None:
        if min(self.tile_shape_mnk) < 1 or min(self.cluster_shape_mnk) < 1:
            raise ValueError(f"tile {self.tile_shape_mnk} and cluster {self.cluster_shape_mnk} must be positive")
        _check_dtype(self.dtype)

    @property
    def compiled(self) -> "Int8GatedConfig":
        """Itself: nothing is left to the launch."""
        return self


@dataclass(frozen=True, kw_only=True)
class Int8ExpertGatedConfig(Int8GatedConfig):
    """A gated kernel of s8, of rows that belong to experts (gemmill.gemm.experts)."""

    tag: ClassVar[str] = "gatedint8expertmm"
    by_expert: ClassVar[bool] = True

    @property
    def compiled(self) -> "Int8ExpertGatedConfig":
        """Itself: nothing is left to the launch."""
        return self


@dataclass(frozen=True, kw_only=True)
class Int8GatheredGatedConfig(Int8ExpertGatedConfig):
    """A gated kernel of s8, of rows of experts that are gathered by their numbers as they are loaded."""

    tag: ClassVar[str] = "gatedint8gatheredmm"
    indexed: ClassVar[bool] = True

    @property
    def compiled(self) -> "Int8GatheredGatedConfig":
        """Itself: nothing is left to the launch."""
        return self


@dataclass(frozen=True, kw_only=True)
class Int8UnalignedGatedConfig(UnalignedGatedConfig):
    """A gated kernel for operands of s8 that TMA does not take."""

    tag: ClassVar[str] = "gatedint8unaligned"

    def __post_init__(self) -> None:
        _check_dtype(self.dtype)

    @property
    def compiled(self) -> "Int8UnalignedGatedConfig":
        """Itself: nothing is left to the launch."""
        return self
