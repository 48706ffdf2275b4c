"""The calls that a quantisation kernel takes at run time, derived from its config and stored in the manifest."""

from dataclasses import dataclass

from gemmill.families.quant.config import Activation, QuantConfig, ScaleFormat
from gemmill.families.quant.ops import ops_of
from gemmill.vocab import DType


@dataclass(frozen=True, kw_only=True)
class QuantPredicate:
    """The calls that a quantisation kernel takes: any sizes, strides and alignment of these kinds."""

    ops: tuple[str, ...]
    """Ops that the kernel can serve; none where it is called by its symbol only."""
    in_dtype: DType
    out_dtype: DType
    activation: Activation
    group_size: int
    """Elements that share a scale; 0 where no scale belongs to a group."""
    scale_format: ScaleFormat
    symmetric: bool

    @property
    def operand_dtype(self) -> DType:
        """The dtype of the operand that a call is asked by."""
        return self.in_dtype


def accepted(config: QuantConfig) -> QuantPredicate:
    """The calls that a kernel of this config takes."""
    return QuantPredicate(
        ops=ops_of(config),
        in_dtype=config.in_dtype,
        out_dtype=config.out_dtype,
        activation=config.activation,
        group_size=config.group_size,
        scale_format=config.scale_format,
        symmetric=config.symmetric,
    )
