"""What a grouped kernel is whose sums end with an alpha and a bias. Its classes are apart from those without, whose compiled
kernels a change here leaves as they are."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from gemmill.families.moe.config import GroupedConfig, UnalignedGroupedConfig
from gemmill.gemm.config import Problem
from gemmill.vocab import EpilogueKind


@dataclass(frozen=True, kw_only=True)
class BiasedGroupedConfig(GroupedConfig):
    """A grouped kernel whose sums end with an alpha of their expert, and with a bias of its columns."""

    tag: ClassVar[str] = "groupedbiasmm"

    @property
    def compiled(self) -> "BiasedGroupedConfig":
        """Itself: nothing is left to the launch."""
        return self

    @cached_property
    def problem(self) -> Problem:
        """What it computes, in the terms of one GEMM."""
        return replace(super().problem, epilogue=EpilogueKind.SCALED_BIAS)


@dataclass(frozen=True, kw_only=True)
class BiasedUnalignedGroupedConfig(UnalignedGroupedConfig):
    """The same for operands that TMA does not take."""

    tag: ClassVar[str] = "groupedbiasunaligned"

    @property
    def compiled(self) -> "BiasedUnalignedGroupedConfig":
        """Itself: nothing is left to the launch."""
        return self


BIASED = (BiasedGroupedConfig, BiasedUnalignedGroupedConfig)
"""Configs of kernels that end with alpha and bias."""
