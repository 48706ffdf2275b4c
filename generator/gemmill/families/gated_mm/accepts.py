"""The calls that a kernel takes at run time, derived from its config and stored in the manifest."""

from dataclasses import dataclass

from gemmill.families.gated_mm.config import Activation, GatedConfig, Result
from gemmill.families.gated_mm.ops import SCALED_MM_ACT_QUANT
from gemmill.vocab import DType


@dataclass(frozen=True, kw_only=True)
class GatedAccepts:
    """The calls that a kernel takes: rows of a and out, and columns of b, begin at multiples of 16 bytes."""

    ops: tuple[str, ...]
    """Ops that the kernel can serve."""
    dtype: DType
    result: Result
    activation: Activation

    @property
    def operand_dtype(self) -> DType:
        """Of the operand that a call is asked by."""
        return self.dtype

    @property
    def out_dtype(self) -> DType:
        """Of the result."""
        return self.result.dtype


def accepted(config: GatedConfig) -> GatedAccepts:
    """The calls that a kernel of this config takes."""
    return GatedAccepts(
        ops=(SCALED_MM_ACT_QUANT.name,),
        dtype=config.dtype,
        result=config.result,
        activation=config.activation,
    )
