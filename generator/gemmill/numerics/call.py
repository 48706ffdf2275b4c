"""One call before it has memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemmill.numerics.memory import Slot

EXACT, WITHIN = "exact", "within"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The largest sizes of calls."""

    elements: int
    """The most elements of any one matrix of most calls."""
    products: int
    """The most products M x N x K of most calls."""
    large: int
    """The most elements of any one matrix of the few large calls; `elements` where there are none."""


CPU_LIMITS = Limits(elements=1 << 13, products=1 << 18, large=1 << 13)
GPU_LIMITS = Limits(elements=1 << 19, products=1 << 28, large=1 << 24)


@dataclass(frozen=True, kw_only=True)
class LegalCall:
    """A call that an op must take: its tensors, its other arguments, and where each tensor's values begin in their pool."""

    op: str
    slots: Mapping[str, Slot]
    """The tensors by argument. An omitted argument has no slot."""
    plain: Mapping[str, Any]
    """The other arguments."""
    offsets: Mapping[str, int]
    judged: str = EXACT
    """EXACT where the result equals the reference, WITHIN where it lies within the error bound of its arithmetic."""

    def __str__(self) -> str:
        tensors = [f"{name} {slot}" for name, slot in self.slots.items()]
        return "; ".join([*tensors, *(f"{name} {value!r}" for name, value in self.plain.items() if value is not None)])
