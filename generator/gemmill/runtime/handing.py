"""Calls that an op refuses may go to another op of the dispatcher: which ops have one."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Handed:
    """Where the calls go that an op refuses."""

    to: str
    """The full name of an op that says whether it took the call."""
    is_there: Callable[[], bool]
    """Whether it may take any."""


HANDED: dict[str, Handed] = {}
"""By the name of the op that refuses."""
_listeners: list[Callable[[str, str], None]] = []


def hand_on(op: str, handed: Handed) -> None:
    """Hand on calls that an op refuses, in loaded builds and in those to come."""
    HANDED[op] = handed
    for tell in _listeners:
        tell(op, handed.to)


def listen(tell: Callable[[str, str], None]) -> None:
    """Call `tell` with all such ops, each with the op that gets its calls."""
    _listeners.append(tell)
    for op, handed in HANDED.items():
        tell(op, handed.to)


def may_go_on(op: str) -> bool:
    """Whether another op may take a call that this one refuses."""
    return op in HANDED and HANDED[op].is_there()
