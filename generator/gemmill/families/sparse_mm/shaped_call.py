"""The shaped call of a sparse GEMM: all that a choice depends on."""

from gemmill.families.sparse_mm import NAME
from gemmill.family import Judged, ShapedCall
from gemmill.family.operand import TMA_BYTES, Operand, tma_alignment


def shaped_call_of(call: Judged) -> ShapedCall:
    """The class and the sizes of a legal call."""
    n = call["N"]
    return ShapedCall(
        family=NAME,
        call_class=call["class"],
        sizes=(call["M"], n, call["K"]),
        alignments=(
            _alignment(call.tensor("a")),
            _alignment(call.tensor("bt_nzs")),
            _alignment(call.tensor("bt_meta")),
            _alignment(call.tensor("out"), n),  # a TMA store ends at a multiple of 16 bytes, not at n
        ),
    )


def _alignment(x: Operand, also: int = 0) -> int:
    rows, columns = x.shape
    step = TMA_BYTES // x.element_bytes
    stride = -(-columns // step) * step if rows == 1 else x.row_stride  # no access uses that of a single row
    return tma_alignment(x, stride | also, columns)
