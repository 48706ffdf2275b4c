"""What a call asks of a variant, as far as the choice depends on it."""

from gemmill.families.blockscaled import NAME
from gemmill.family import Judged, ShapedCall
from gemmill.family.operand import TMA_BYTES, Operand, tma_alignment


def shaped_call_of(call: Judged) -> ShapedCall:
    """The class and the sizes of a call that has passed the checks."""
    out, columns = call.tensor("out"), call["N"]
    return ShapedCall(
        family=NAME,
        call_class=call["class"],
        sizes=(call["M"], columns, call["K"]),
        # a TMA store ends at a multiple of 16 bytes, not at n
        alignments=(
            _alignment(call.tensor("a")),
            _alignment(call.tensor("b")),
            _alignment(out, columns),
            _alignment_of_scales(call),
        ),
    )


def _alignment_of_scales(call: Judged) -> int:
    """Alignment of the scales of both operands. Swizzled ones have no rows."""
    bits = call.tensor("b_sf").data | TMA_BYTES | (call.tensor("a_sf").data if call.get("a_sf") is not None else 0)
    return bits & -bits


def _alignment(x: Operand, also: int = 0) -> int:
    """Alignment of data and rows. The stride of a single row is never used, nor are strides of packed blocks."""
    columns = x.shape[-1]
    stride = x.strides[0] if len(x.shape) == 2 and x.shape[0] > 1 else -(-columns // TMA_BYTES) * TMA_BYTES
    return tma_alignment(x, stride | also, columns)
