"""The inputs of a choice in a call."""

from gemmill.families.grouped_mm import NAME
from gemmill.family import Judged, ShapedCall
from gemmill.family.operand import Operand, tma_alignment


def shaped_call_of(call: Judged) -> ShapedCall:
    """The class and the sizes of a legal call."""
    n = call["N"]
    return ShapedCall(
        family=NAME,
        call_class=call["class"],
        sizes=(expected_rows(call), n, call["K"], call["experts"]),
        # a TMA store ends at a multiple of 16 bytes, not at n
        alignments=(_alignment(call.tensor("a")), _alignment(call.tensor("b")), _alignment(call.tensor("out"), n)),
    )


def expected_rows(call: Judged) -> int:
    """Rows of all experts together, as far as the host knows."""
    slot: int = call["slot"]
    rows: int = call["M"]
    if not slot:
        return rows
    return rows // slot * min(call.get("expected_rows") or slot, slot)


def _alignment(x: Operand, also: int = 0) -> int:
    return tma_alignment(x, x.row_stride | also, x.shape[-1])
