"""The inputs of a choice in a call."""

from gemmill.families.fused_experts import NAME
from gemmill.family import Judged, ShapedCall
from gemmill.family.operand import Operand, tma_alignment


def shaped_call_of(call: Judged) -> ShapedCall:
    """The class and the sizes of a legal call."""
    return ShapedCall(
        family=NAME,
        call_class=call["class"],
        sizes=(call["pairs"], call["inner"], call["K"], call["weights"]),
        alignments=tuple(_alignment(call.tensor(role)) for role in ("x", "w13", "w2")),
    )


def _alignment(x: Operand) -> int:
    return tma_alignment(x, x.row_stride, x.shape[-1])
