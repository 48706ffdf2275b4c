"""The checks of every call, with their sentences. The extension makes the same checks and comes here for the text."""

from gemmill.family.operand import Call
from gemmill.registry import REGISTRY
from gemmill.runtime.schemas import OpSchema


def check(op: OpSchema, call: Call) -> None:
    """Raise RuntimeError with one sentence for the first thing that is wrong with a call; touch no data."""
    family, declared = REGISTRY.ops[op.name]
    if (fault := family.asks.fault(declared, call)) is not None:
        raise RuntimeError(f"{op.name}: {fault}")
