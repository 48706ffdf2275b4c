"""ExpertsConfig: one kind of kernels for fused experts."""

from dataclasses import dataclass
from typing import ClassVar

from gemmill.vocab import Arch, Backend, DType

GROUP = 128
"""Elements of a row that share a scale where scales come in groups, and rows of weights."""
MOST_WEIGHTS = 512
"""Experts that a CTA sorts by, one a thread."""
CODED = DType.E4M3
"""Weights that are multiplied by codes of activations; others have the type of activations."""
HALVES = (DType.BF16, DType.F16)
"""Activations and results."""
TILES = (8, 16, 32)
"""Rows of an expert that a CTA takes together."""


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """One variant: three kernels. Its launch has no settings: grids follow from the call's sizes."""

    dtype: DType
    """Of weights."""
    out_dtype: DType
    """Of x and of the result."""
    group_size: int = 0
    """Elements of a row that share a scale, and rows of weights; 0: of whole rows, or none of weights of 16 bits."""
    tile_tokens: int
    """Rows of an expert that a CTA takes together."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "fusedexperts"
    backend: ClassVar[Backend] = Backend.CUTLASS

    def __post_init__(self) -> None:
        if self.dtype not in (CODED, *HALVES) or self.out_dtype not in HALVES:
            raise ValueError(
                f"dtype={self.dtype}, out_dtype={self.out_dtype}: weights are {CODED}, bf16 or f16, results bf16 or f16"
            )
        if self.group_size not in (0, GROUP):
            raise ValueError(f"group_size={self.group_size}: scales are of {GROUP}, or 0 for whole rows")

    @property
    def compiled(self) -> "ExpertsConfig":
        """Itself: nothing is left to the launch."""
        return self

    @property
    def is_coded(self) -> bool:
        """Whether activations become codes."""
        return self.dtype is CODED
