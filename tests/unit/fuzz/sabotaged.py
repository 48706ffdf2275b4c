"""The fuzzer's process with faults committed on purpose, to see that each kind is found."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gemmill.fuzz.breakages import Arguments
from gemmill.fuzz.child import Child
from gemmill.fuzz.findings import FaultKind, FuzzSpec
from gemmill.numerics.memory import Memory
from gemmill.tuner.bench import run


@dataclass(frozen=True, kw_only=True)
class SabotagedSpec(FuzzSpec):
    """With kinds of faults to commit, by the call's index."""

    faults: Mapping[str, str] = field(default_factory=dict, hash=False)


class Sabotaged(Child):
    """Commits them."""

    def __init__(self, spec: SabotagedSpec) -> None:
        super().__init__(spec)
        self._faults = spec.faults

    def call(self, index: int, op: str, arguments: Arguments, memory: Memory) -> None:
        def make() -> None:
            super(Sabotaged, self).call(index, op, arguments, memory)

        fault = self._faults.get(str(index))
        if fault is None:
            make()
        else:
            _COMMIT[FaultKind(fault)](make, memory)


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


_COMMIT: dict[FaultKind, Callable[[Callable[[], None], Memory], None]] = {
    FaultKind.CRASH: _crash,
    FaultKind.HANG: _hang,
    FaultKind.REFUSED: _refuse,
    FaultKind.WRONG: _spoil,
    FaultKind.OUT_OF_BOUNDS: _write_outside,
    FaultKind.ACCEPTED: _accept,
    FaultKind.SENTENCE: _refuse,
    FaultKind.TOUCHED: _write_and_refuse,
    FaultKind.UNJUDGED: _fail_to_judge,
}

if __name__ == "__main__":
    run(lambda **spec: Sabotaged(SabotagedSpec(**spec)))
