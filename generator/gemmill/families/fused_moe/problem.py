"""What a call asks of a variant, as far as the choice depends on it."""

from gemmill.families.fused_moe import NAME
from gemmill.family import Judged, ProblemCall
from gemmill.family.operand import Operand, tma_alignment


def problem_of_call(call: Judged) -> ProblemCall:
    """The problem of a call that has passed the checks."""
    return ProblemCall(
        family=NAME,
        problem=call["class"],
        sizes=(call["pairs"], call["inner"], call["K"], call["weights"]),
        alignments=tuple(_alignment(call.tensor(role)) for role in ("x", "w13", "w2")),
    )


def _alignment(x: Operand) -> int:
    return tma_alignment(x, x.row_stride, x.shape[-1])
