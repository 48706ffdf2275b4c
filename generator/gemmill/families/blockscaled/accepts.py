"""The calls that a kernel takes at run time, derived from its config and stored in the manifest."""

from dataclasses import dataclass

from gemmill.families.blockscaled.config import AnyConfig
from gemmill.families.blockscaled.ops import OPS_OF
from gemmill.families.blockscaled.pairs import (
    FOLDED_PAIRS,
    Pair,
)
from gemmill.vocab import DType


@dataclass(frozen=True, kw_only=True)
class BlockScaledAccepts:
    """The calls that a kernel takes. A's rows and packed weights begin at multiples of 16 bytes."""

    ops: tuple[str, ...]
    """Ops that the kernel can serve."""
    pair: Pair
    out_dtype: DType
    prepacked: bool
    """Whether weights are in a kernel's order, not a checkpoint's."""
    grouped: bool
    """Whether each scale of activations is of one token and 128 columns."""
    group_size: int
    """Weights along K that share a scale."""

    @property
    def operand_dtype(self) -> DType:
        """The dtype of A as a call passes it; codes that are not of 8 bits come as bytes."""
        if self.pair.a_format is None and self.pair not in FOLDED_PAIRS:
            return self.out_dtype
        return DType.E4M3 if self.pair.a_bits == 8 else DType.U8


def accepted(config: AnyConfig) -> BlockScaledAccepts:
    """The calls that a kernel of this config takes."""
    return BlockScaledAccepts(
        ops=OPS_OF[config.pair],
        pair=config.pair,
        out_dtype=config.out_dtype,
        prepacked=config.prepacked,
        grouped=config.grouped,
        group_size=config.pair.b_format.group,
    )
