"""The shaped call of a gated GEMM: all that a choice depends on."""

from gemmill.families.gated_mm import NAME
from gemmill.family import Judged, ShapedCall
from gemmill.family.operand import Operand, tma_alignment


def shaped_call_of(call: Judged) -> ShapedCall:
    """The class and the sizes of a legal call."""
    if call.get("of_experts"):
        return _of_experts(call)
    m, n, k = call["M"], call["N"], call["K"]
    out, a, b = call.tensor("out"), call.tensor("a"), call.tensor("b")
    strides = _stride(out, 0, m, n // 2), _stride(a, 0, m, k), _stride(b, 1, n, k)
    return ShapedCall(
        family=NAME,
        call_class=call["class"],
        sizes=(m, n, k, 0),
        # A TMA store ends at a multiple of 16 bytes, not where a row does.
        alignments=(
            tma_alignment(a, strides[1], k),
            tma_alignment(b, strides[2], k),
            tma_alignment(out, strides[0] | n // 2, n // 2),
        ),
    )


def _of_experts(call: Judged) -> ShapedCall:
    """The shaped call of rows that belong to experts, with as many rows as the host knows of."""
    hidden, slot, rows = call["N"] // 2, call["slot"], call["M"]
    if slot:
        rows = rows // slot * min(call.get("expected_rows") or slot, slot)
    a, b, out = (call.tensor(name) for name in ("a", "b", "out"))
    return ShapedCall(
        family=NAME,
        call_class=call["class"],
        sizes=(rows, call["N"], call["K"], call["experts"]),
        alignments=(
            *(tma_alignment(x, x.row_stride, x.shape[-1]) for x in (a, b)),
            tma_alignment(out, out.row_stride | hidden, hidden),
        ),
    )


def _stride(x: Operand, dim: int, count: int, length: int) -> int:
    """The stride from row to row, or from column to column.

    No access uses a single row's stride, so it counts as one that TMA takes.
    """
    return -(-length // 16) * 16 if count == 1 else x.strides[dim]
