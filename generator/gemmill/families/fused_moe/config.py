"""ExpertsConfig: one kind of kernels for fused experts."""

from dataclasses import dataclass
from typing import ClassVar

from gemmill.formats.layout import BLOCK_COLUMNS, SIDE, STAGE_COLUMNS
from gemmill.vocab import Arch, Backend, DType, Format
from gemmill.vocab.format import MXFP4, NVFP4

GROUP = 128
"""Elements of a row that share a scale, where scales come in groups. A scale of weights is of as many rows, too."""
MOST_WEIGHTS = 512
"""The most experts that a CTA sorts pairs by: one for each of its threads."""
CODED = DType.E4M3
"""Dtype of weights that are multiplied by codes of activations; other weights have the dtype of activations."""
HALVES = (DType.BF16, DType.F16)
"""Dtypes of activations and results."""
TILES = (8, 16, 32)
"""Rows of an expert that a CTA takes together."""
FP4_FORMATS = (NVFP4, MXFP4)
"""Formats of packed weights, in the order in which classes of calls number them, from 1 on."""
PACKED_TILES = {8: (64, 7), 16: (64, 5), 32: (128, 5), 64: (128, 4), 128: (128, 5)}
"""Tiles of packed weights: by an expert's rows in a tile, the rows of weights that a CTA takes together, and stages."""


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """One variant: three kernels. Its launch has no settings: grids follow from the call's sizes."""

    dtype: DType
    """Dtype of w13 and w2."""
    out_dtype: DType
    """Dtype of x and of the result."""
    group_size: int = 0
    """Elements of a row that share a scale. 0 stands for scales of whole rows, or for none where weights have 16 bits."""
    tile_tokens: int
    """Rows of an expert that a CTA takes together."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "fusedexperts"
    backend: ClassVar[Backend] = Backend.CUTLASS
    format: ClassVar[Format | None] = None

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


@dataclass(frozen=True, kw_only=True)
class PackedExpertsConfig:
    """Three kernels for packed 4-bit weights: kernels/fused_moe/packed_experts.cuh. Activations and results are bf16."""

    format: Format
    """Format of w13 and w2."""
    tile_tokens: int
    """Rows of an expert that a CTA takes together. `PACKED_TILES` gives the rows of weights and the stages that follow."""
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "fusedfp4experts"
    backend: ClassVar[Backend] = Backend.CUTLASS
    dtype: ClassVar[DType] = DType.U8
    out_dtype: ClassVar[DType] = DType.BF16
    group_size: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.format not in FP4_FORMATS:
            raise ValueError(f"format={self.format}: packed weights are {' or '.join(map(str, FP4_FORMATS))}")

    @property
    def compiled(self) -> "PackedExpertsConfig":
        """Itself: nothing is left to the launch."""
        return self

    @property
    def tile_rows(self) -> int:
        """Rows of weights that a CTA takes together: 64 by four warps, 128 by two groups of 128 threads."""
        return PACKED_TILES[self.tile_tokens][0]

    @property
    def by_warps(self) -> bool:
        """Whether warps multiply alone, few tokens each."""
        return self.tile_rows == SIDE

    @property
    def stages(self) -> int:
        """Stages of the main loop's pipeline."""
        return PACKED_TILES[self.tile_tokens][1]

    @property
    def stage_parts(self) -> int:
        """Blocks of 64 columns in a stage."""
        return (STAGE_COLUMNS if self.by_warps else BLOCK_COLUMNS) // SIDE

    @property
    def loaders(self) -> int:
        """Threads that load: four warps where a CTA is alone on a multiprocessor."""
        return 32 if self.tile_tokens <= 64 else 128


AnyConfig = ExpertsConfig | PackedExpertsConfig
