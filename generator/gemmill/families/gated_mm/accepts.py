"""The calls that a kernel takes at run time, derived from its config and stored in the manifest."""

from dataclasses import dataclass
from typing import ClassVar

from gemmill.families.gated_mm.config import (
    GROUP,
    Activation,
    GatedConfig,
    GroupGatedConfig,
    Result,
    UnalignedGatedConfig,
)
from gemmill.families.gated_mm.expert_ops import EXPERT_NAMES, GROUPED_MM_ACT_QUANT
from gemmill.families.gated_mm.ops import SCALED_MM_ACT_QUANT
from gemmill.vocab import DType


@dataclass(frozen=True, kw_only=True)
class UnalignedGatedAccepts:
    """The calls that a kernel takes, however operands lie."""

    ops: tuple[str, ...]
    """Ops that the kernel can serve."""
    dtype: DType
    """Dtype of a and b."""
    result: Result
    """What the kernel stores."""
    group_size: ClassVar[int] = 0
    """Elements along K that share a scale of the operands; 0: scales of rows and columns."""

    @property
    def operand_dtype(self) -> DType:
        """Dtype of the operand that a call is asked by."""
        return self.dtype

    @property
    def out_dtype(self) -> DType:
        """Dtype of the result."""
        return self.result.dtype

    @property
    def activations(self) -> tuple[Activation, ...]:
        """Activations that the kernel computes: all of them."""
        return tuple(Activation)


@dataclass(frozen=True, kw_only=True)
class GatedAccepts(UnalignedGatedAccepts):
    """The calls that a kernel takes: rows of a and out, and columns of b, begin at multiples of 16 bytes."""

    activation: Activation
    """The activation that the kernel was compiled with."""

    @property
    def activations(self) -> tuple[Activation, ...]:
        """Activations that the kernel computes: its own."""
        return (self.activation,)


@dataclass(frozen=True, kw_only=True)
class GroupGatedAccepts(GatedAccepts):
    """The calls that a kernel of operands with scales in groups along K takes. Alignments are those of
    `GatedAccepts`."""

    group_size: ClassVar[int] = GROUP


def _ops_of(config: GatedConfig) -> tuple[str, ...]:
    if config.indexed:
        return (GROUPED_MM_ACT_QUANT.name,)
    return EXPERT_NAMES if config.by_expert else (SCALED_MM_ACT_QUANT.name,)


def accepted(config: GatedConfig) -> GatedAccepts:
    """The calls that a kernel of this config takes."""
    return GatedAccepts(
        ops=_ops_of(config),
        dtype=config.dtype,
        result=config.result,
        activation=config.activation,
    )


def accepted_in_groups(config: GroupGatedConfig) -> GroupGatedAccepts:
    """The calls that a kernel of this config takes."""
    return GroupGatedAccepts(
        ops=_ops_of(config),
        dtype=config.dtype,
        result=config.result,
        activation=config.activation,
    )


def accepted_unaligned(config: UnalignedGatedConfig) -> UnalignedGatedAccepts:
    """The calls that a kernel for unaligned operands takes."""
    return UnalignedGatedAccepts(ops=(SCALED_MM_ACT_QUANT.name,), dtype=config.dtype, result=config.result)
