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
from gemmill.families.gated_mm.expert_ops import EXPERT_NAMES
from gemmill.families.gated_mm.ops import SCALED_MM_ACT_QUANT
from gemmill.vocab import DType


@dataclass(frozen=True, kw_only=True)
class UnalignedGatedAccepts:
    """The calls that a kernel takes, however operands lie."""

    ops: tuple[str, ...]
    """Ops that the kernel can serve."""
    dtype: DType
    result: Result
    group_size: ClassVar[int] = 0
    """Elements along K that share a scale of the operands; 0: scales of rows and columns."""

    @property
    def operand_dtype(self) -> DType:
        """Of the operand that a call is asked by."""
        return self.dtype

    @property
    def out_dtype(self) -> DType:
        """Of the result."""
        return self.result.dtype

    @property
    def activations(self) -> tuple[Activation, ...]:
        """That the kernel computes."""
        return tuple(Activation)


@dataclass(frozen=True, kw_only=True)
class GatedAccepts(UnalignedGatedAccepts):
    """The calls that a kernel takes: rows of a and out, and columns of b, begin at multiples of 16 bytes."""

    activation: Activation

    @property
    def activations(self) -> tuple[Activation, ...]:
        """That the kernel computes."""
        return (self.activation,)


@dataclass(frozen=True, kw_only=True)
class GroupGatedAccepts(GatedAccepts):
    """The same, of operands whose scales are in groups along K."""

    group_size: ClassVar[int] = GROUP


def _ops_of(config: GatedConfig) -> tuple[str, ...]:
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
    """The calls that a kernel of this config takes."""
    return UnalignedGatedAccepts(ops=(SCALED_MM_ACT_QUANT.name,), dtype=config.dtype, result=config.result)
