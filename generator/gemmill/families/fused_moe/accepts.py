"""The calls that a kernel takes at run time, derived from its config and stored in the manifest."""

from dataclasses import dataclass

from gemmill.families.fused_moe.config import MOST_WEIGHTS, ExpertsConfig, PackedExpertsConfig
from gemmill.families.fused_moe.ops import FUSED_EXPERTS
from gemmill.families.fused_moe.packed_ops import FUSED_FP4_EXPERTS
from gemmill.vocab import DType


@dataclass(frozen=True, kw_only=True)
class ExpertsAccepts:
    """The calls that a kernel takes: rows of x, w13 and w2 begin at multiples of 16 bytes."""

    ops: tuple[str, ...]
    """Ops that the kernel can serve."""
    dtype: DType
    """Dtype of w13 and w2."""
    out_dtype: DType
    """Dtype of x and of the result."""
    group_size: int
    """Elements along K that share a scale; 0 where scales are of whole rows, or where there are none."""
    most_experts: int
    """The most experts whose weights a call may have."""

    @property
    def format(self) -> str | None:
        """How weights are packed; None, for these are not packed."""
        return None

    @property
    def operand_dtype(self) -> DType:
        """Dtype of the operand that a call is asked by: the weights."""
        return self.dtype


@dataclass(frozen=True, kw_only=True)
class PackedExpertsAccepts(ExpertsAccepts):
    """The calls that a kernel of packed weights takes: rows of x begin at multiples of 16 bytes, as weights do."""

    packed_as: str
    """How the weights are packed."""

    @property
    def format(self) -> str | None:
        """How the weights are packed."""
        return self.packed_as


def accepted_packed(config: PackedExpertsConfig) -> PackedExpertsAccepts:
    """The calls that a kernel of this config takes."""
    return PackedExpertsAccepts(
        ops=(FUSED_FP4_EXPERTS.name,),
        dtype=config.dtype,
        out_dtype=config.out_dtype,
        group_size=0,
        most_experts=MOST_WEIGHTS,
        packed_as=str(config.packing),
    )


def accepted(config: ExpertsConfig) -> ExpertsAccepts:
    """The calls that a kernel of this config takes."""
    return ExpertsAccepts(
        ops=(FUSED_EXPERTS.name,),
        dtype=config.dtype,
        out_dtype=config.out_dtype,
        group_size=config.group_size,
        most_experts=MOST_WEIGHTS,
    )
