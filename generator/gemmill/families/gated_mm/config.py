"""The config of a gated kernel: it multiplies by gate and up weights, and its epilogue is their activation."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import ClassVar

from gemmill.family import OfOperands, WithoutSettings
from gemmill.gemm.config import ACCUMULATOR_OF, Design, steps_of
from gemmill.gemm.config import Operands as GemmOperands
from gemmill.gemm.traced import Traced
from gemmill.vocab import Arch, Backend, DType, EpilogueKind, ScaleGranularity, ScaleLayout
from gemmill.vocab.activation import Activation as Activation

OPERANDS = (DType.E4M3, DType.S8)
"""Types of operands. Scales in groups come with e4m3 alone."""
GROUP, FINE_GROUP = 128, 32
"""Results of a row that share a scale.

It is also how many elements along K, and how many gates or ups, share a scale of the operands.
"""


class Result(StrEnum):
    """The results of a kernel."""

    BF16 = "bf16"
    STATIC = "e4m3static"
    """codes, by a given scale"""
    GROUP = "e4m3group128"
    """codes, and a scale for each GROUP of a row"""
    FINE_GROUP = "e4m3group32"
    """codes, and a scale for each FINE_GROUP of a row: of operands in groups of as many"""

    @property
    def dtype(self) -> DType:
        """Type of an element."""
        return DType.BF16 if self is Result.BF16 else DType.E4M3

    @property
    def group(self) -> int:
        """Results of a row that share a scale that the kernel finds; 0 where it finds none."""
        return {Result.GROUP: GROUP, Result.FINE_GROUP: FINE_GROUP}.get(self, 0)


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The operands of the product."""

    dtype: DType
    """Type of A and of the weights."""
    group_size: int = 0
    """Elements along K that share a scale of A, and gates or ups x elements along K that share one of the weights; 0: scales of
    rows and columns."""
    rows_scaled: bool = False
    """Whether each gate and up has scales of its own, in place of one for a block of them."""
    by_expert: bool = False
    """Whether rows belong to experts, each with weights of its own: their counts are on the device (gemmill.gemm.experts)."""
    indexed: bool = False
    """Whether the kernel gathers rows of A, of experts, by their numbers as it loads them."""

    def __post_init__(self) -> None:
        if self.dtype not in OPERANDS:
            raise ValueError(f"dtype={self.dtype}: gated kernels multiply {' or '.join(OPERANDS)}")
        if self.group_size not in ((0, GROUP, FINE_GROUP) if self.dtype is DType.E4M3 else (0,)):
            raise ValueError(
                f"group_size={self.group_size} of {self.dtype}: scales are of {GROUP} or {FINE_GROUP} along K with {DType.E4M3}, else 0"
            )
        if self.rows_scaled and self.group_size != FINE_GROUP:
            raise ValueError(
                f"rows_scaled={self.rows_scaled} contradicts group_size={self.group_size}: gates and ups have scales of their own in "
                f"groups of {FINE_GROUP}"
            )
        if self.indexed and not self.by_expert:
            raise ValueError(
                f"indexed={self.indexed} contradicts by_expert={self.by_expert}: experts' rows are gathered"
            )


@dataclass(frozen=True, kw_only=True)
class Epilogue:
    """The operations on sums."""

    result: Result
    activation: Activation | None = None
    """None: each call says which."""

    @property
    def activations(self) -> tuple[Activation, ...]:
        """Activations that a kernel computes."""
        return tuple(Activation) if self.activation is None else (self.activation,)


@dataclass(frozen=True, kw_only=True)
class _Common(OfOperands, WithoutSettings):
    """One variant. Its launch has no settings: the grid follows from the call's sizes."""

    operands: Operands
    epilogue: Epilogue
    arch: Arch = Arch.SM90A

    @property
    def out_dtype(self) -> DType:
        """Dtype of the result."""
        return self.epilogue.result.dtype

    @property
    def rows_scaled(self) -> bool:
        """Whether each gate and up has scales of its own along K."""
        return self.operands.rows_scaled


@dataclass(frozen=True, kw_only=True)
class UnalignedGatedConfig(_Common):
    """A kernel for operands that TMA does not take: any rows, strides and addresses."""

    tag: ClassVar[str] = "gatedunaligned"
    backend: ClassVar[Backend] = Backend.CUTLASS
    tile_shape_mnk: ClassVar[tuple[int, int, int]] = (64, 64, 64)


@dataclass(frozen=True, kw_only=True)
class GatedPartsConfig(_Common):
    """Two launches, one after the other: a plain GEMM stores the product in bf16, and a kernel activates and codes it. The binding
    chooses the GEMM as its own family does. Operands are those of a GatedConfig, or have scales of blocks."""

    tag: ClassVar[str] = "gatedparts"
    backend: ClassVar[Backend] = Backend.CUTLASS
    tile_shape_mnk: ClassVar[tuple[int, int, int]] = (8, 512, 64)
    """Of the second kernel: a CTA has 256 results of each of eight rows."""

    @property
    def block(self) -> int:
        """Gates, or ups, that share a scale, and are neighbouring columns of the product; 0 where gates and ups take turns by
        eight."""
        return 0 if self.rows_scaled else self.operands.group_size


@dataclass(frozen=True, kw_only=True)
class GatedConfig(_Common):
    """A kernel that multiplies, activates and stores results. Its operands travel by TMA: rows of a and out, and columns of b, begin
    at multiples of 16 bytes."""

    tag: ClassVar[str] = "gatedmm"
    design: Design
    """With swap_ab, M of the tile counts rows of the weights, which are gates and ups."""
    backend: ClassVar[Backend] = Backend.CUTEDSL

    def __post_init__(self) -> None:
        if self.epilogue.activation is None:
            raise ValueError("activation=None: a kernel that loads with TMA is compiled for one")

    @cached_property
    def gemm_operands(self) -> GemmOperands:
        """The product, in the terms of a GEMM that stores it."""
        group = self.operands.group_size
        return GemmOperands(
            a_dtype=self.operands.dtype,
            b_dtype=self.operands.dtype,
            accumulator_dtype=ACCUMULATOR_OF[self.operands.dtype],
            out_dtype=DType.BF16,
            a_scale=ScaleGranularity.GROUP if group else ScaleGranularity.CHANNEL,
            b_scale=ScaleGranularity.GROUP if group else ScaleGranularity.CHANNEL,
            scale_layout=ScaleLayout.STRIDED if group else ScaleLayout.VECTOR,
            group_size=group,
        )

    @property
    def traced(self) -> Traced:
        """The steps of the epilogue of that GEMM."""
        return steps_of(self.gemm_operands, EpilogueKind.SCALED)


AnyConfig = GatedConfig | UnalignedGatedConfig | GatedPartsConfig
