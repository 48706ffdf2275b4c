"""Faults committed on purpose, to see that each kind is found."""

import os
import time
from collections.abc import Callable

from gemmill.fuzz.findings import Kind
from gemmill.numerics.memory import Memory

Sabotage = Callable[[Callable[[], None]], None]


def of(kind: str | None, memory: Memory) -> Sabotage:
    """What stands between the fuzzer and an op: nothing, or a fault."""
    return _none if kind is None else lambda make: _COMMIT[Kind(kind)](make, memory)


def _none(make: Callable[[], None]) -> None:
    make()


def _crash(_make: Callable[[], None], _memory: Memory) -> None:
    os.abort()


def _hang(_make: Callable[[], None], _memory: Memory) -> None:
    while True:
        time.sleep(1)


def _refuse(_make: Callable[[], None], _memory: Memory) -> None:
    raise RuntimeError("the op was told to refuse")


def _spoil(make: Callable[[], None], memory: Memory) -> None:
    make()
    name = next(name for name, slot in memory.slots.items() if slot.written and slot.numel)
    memory.bits(name)[-1, -1] ^= 0x23


def _write_outside(make: Callable[[], None], memory: Memory) -> None:
    make()
    memory.bytes[-1] = 0


def _accept(make: Callable[[], None], _memory: Memory) -> None:
    try:
        make()
    except RuntimeError:
        return


def _write_and_refuse(make: Callable[[], None], memory: Memory) -> None:
    memory.bytes[memory.bytes.numel() // 2 :] ^= 0x11
    make()


def _fail_to_judge(_make: Callable[[], None], memory: Memory) -> None:
    memory.slots.clear()


_COMMIT: dict[Kind, Callable[[Callable[[], None], Memory], None]] = {
    Kind.CRASH: _crash,
    Kind.HANG: _hang,
    Kind.REFUSED: _refuse,
    Kind.WRONG: _spoil,
    Kind.OUT_OF_BOUNDS: _write_outside,
    Kind.ACCEPTED: _accept,
    Kind.SENTENCE: _refuse,
    Kind.TOUCHED: _write_and_refuse,
    Kind.UNJUDGED: _fail_to_judge,
}
