"""What a call asks of a variant, as far as the choice depends on it."""

from gemmill.families.blockscaled import NAME
from gemmill.family import Judged, ShapedCall
from gemmill.family.operand import TMA_BYTES, Operand, tma_alignment

SPREAD_BYTES = 32
"""Multiples at which TMA wants rows of packed codes to begin that it spreads to bytes."""
_PACKED = "uint8"
"""The dtype of packed codes."""


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
            _alignment_of_b(call),
            _alignment(out, columns),
            _alignment_of_scales(call),
        ),
    )


def _alignment_of_b(call: Judged) -> int:
    """Where A has 8-bit codes, TMA spreads packed ones of 4 and 6 bits to bytes: it takes rows at multiples of SPREAD_BYTES, and of
    whole elements. Mirrors kernels/blockscaled/binding.cpp."""
    a, b = call.tensor("a"), call.tensor("b")
    found = _alignment(b)
    are_bytes = a.element_bytes == 1 and a.shape[-1] == call["K"]  # codes of e4m3 come as e4m3 or as bytes
    if not are_bytes or b.dtype != _PACKED or len(b.shape) != 2:
        return found
    is_of_6_bits = 4 * b.shape[1] == 3 * call["K"]
    return spread_alignment(found, b.data, _row_stride(b), is_of_6_bits=is_of_6_bits)


def spread_alignment(found: int, address: int, stride: int, *, is_of_6_bits: bool) -> int:
    """The alignment of codes that TMA spreads, whose own is `found`: SPREAD_BYTES where rows begin at multiples of them and are a
    whole number of elements apart."""
    is_whole = not is_of_6_bits or stride % 3 == 0
    return SPREAD_BYTES if is_whole and found == TMA_BYTES and not (address | stride) % SPREAD_BYTES else found


def _alignment_of_scales(call: Judged) -> int:
    """Alignment of the scales of both operands. Swizzled ones have no rows."""
    bits = call.tensor("b_sf").data | TMA_BYTES | (call.tensor("a_sf").data if call.get("a_sf") is not None else 0)
    return bits & -bits


def _alignment(x: Operand, also: int = 0) -> int:
    """Alignment of data and rows."""
    return tma_alignment(x, _row_stride(x) | also, x.shape[-1])


def _row_stride(x: Operand) -> int:
    """The stride of a single row is never used, nor are strides of packed blocks."""
    return x.strides[0] if len(x.shape) == 2 and x.shape[0] > 1 else -(-x.shape[-1] // TMA_BYTES) * TMA_BYTES
