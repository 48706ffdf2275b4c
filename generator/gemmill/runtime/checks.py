"""The checks of every call, with their sentences. The extension makes the same checks and comes here for the text."""

from gemmill.family import Judged
from gemmill.family.operand import Call
from gemmill.registry import REGISTRY
from gemmill.runtime.schemas import OpSchema


def check(op: OpSchema, call: Call) -> Judged:
    """The facts of a legal call. It touches no data.

    Raises RuntimeError with one sentence for the first fault of the call.
    """
    found = judged(op, call)
    if found.fault is not None:
        raise RuntimeError(f"{op.name}: {found.fault}")
    return found


def judged(op: OpSchema, call: Call) -> Judged:
    """A call whose facts are computed at their first use."""
    family, declared = REGISTRY.ops[op.name]
    return family.asks.judged(declared, call)
