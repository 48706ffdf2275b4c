"""The operands of a product: formats of both."""

from enum import StrEnum

from gemmill.vocab import Format
from gemmill.vocab.format import MXFP4, MXFP6, MXFP8, NVFP4


class Pair(StrEnum):
    """The operands of a product: A, then B. The first pairs are in the order in which `fp4_weight_mm` lists its
    formats.
    """

    FLOATS_NVFP4 = "floatsxnvfp4"
    """A of 16-bit numbers"""
    FLOATS_MXFP4 = "floatsxmxfp4"
    FLOATS_MXFP6 = "floatsxmxfp6"
    FLOATS_MXFP8 = "floatsxmxfp8"
    E4M3_MXFP4 = "e4m3xmxfp4"
    """A of e4m3 numbers, with scales of rows or of 128 columns each"""
    E4M3_NVFP4 = "e4m3xnvfp4"
    NVFP4 = "nvfp4xnvfp4"
    MXFP4 = "mxfp4xmxfp4"
    MXFP8 = "mxfp8xmxfp8"
    MXFP8_MXFP6 = "mxfp8xmxfp6"
    MXFP8_MXFP4 = "mxfp8xmxfp4"

    @property
    def a_format(self) -> Format | None:
        """A's format; None where A has numbers that no block scales belong to."""
        return _FORMATS[self][0]

    @property
    def a_bits(self) -> int:
        """Bits of an element of A."""
        if self.a_format is not None:
            return self.a_format.code.bits
        return 8 if self in FOLDED_PAIRS else 16

    @property
    def b_format(self) -> Format:
        """The weights' format."""
        return _FORMATS[self][1]


_FORMATS: dict[Pair, tuple[Format | None, Format]] = {
    Pair.FLOATS_NVFP4: (None, NVFP4),
    Pair.FLOATS_MXFP4: (None, MXFP4),
    Pair.FLOATS_MXFP6: (None, MXFP6),
    Pair.FLOATS_MXFP8: (None, MXFP8),
    Pair.E4M3_MXFP4: (None, MXFP4),
    Pair.E4M3_NVFP4: (None, NVFP4),
    Pair.NVFP4: (NVFP4, NVFP4),
    Pair.MXFP4: (MXFP4, MXFP4),
    Pair.MXFP8: (MXFP8, MXFP8),
    Pair.MXFP8_MXFP6: (MXFP8, MXFP6),
    Pair.MXFP8_MXFP4: (MXFP8, MXFP4),
}
WEIGHT_PAIRS = (Pair.FLOATS_NVFP4, Pair.FLOATS_MXFP4, Pair.FLOATS_MXFP6, Pair.FLOATS_MXFP8)
"""Pairs of `fp4_weight_mm`."""
FP4_PAIRS = (Pair.FLOATS_NVFP4, Pair.FLOATS_MXFP4)
"""Pairs whose packed weights are blocks, with bf16 activations; weights of others are packed in rows."""
FOLDED_PAIRS = (Pair.E4M3_MXFP4, Pair.E4M3_NVFP4)
"""Pairs of `mxfp4_fp8_mm` and `nvfp4_fp8_mm_rounded`."""
WORD_PAIRS = (Pair.NVFP4, Pair.MXFP4)
"""Pairs of two operands of 4-bit codes."""
CODE_PAIRS = tuple(pair for pair in Pair if pair.a_format is not None)
"""Pairs of two block-scaled operands."""
SPREAD_PAIRS = (Pair.MXFP8_MXFP6, Pair.MXFP8_MXFP4)
"""Those whose B is spread to bytes in shared memory on Blackwell."""
