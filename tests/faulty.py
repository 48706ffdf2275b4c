"""A measuring process in which candidates go wrong on purpose, to see a sweep survive them: `python -m faulty SPEC`."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gemmill.numerics.measured import Bind, Operands
from gemmill.tuner.bench import Bench, run
from gemmill.tuner.checking import GUARD_BYTES, Fault
from gemmill.tuner.protocol import Candidate, WorkerSpec
from gemmill.tuner.subjects import Subject

HERE = Path(__file__).parent
"""The PYTHONPATH with which a process of this module starts."""
HANG_CYCLES = 1 << 40
"""Ten minutes and more of an H200's clock."""


@dataclass(frozen=True, kw_only=True)
class FaultySpec(WorkerSpec):
    """The arguments of such a process."""

    faults: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Faults to commit, by candidate name."""


class FaultyBench(Bench):
    """The commands, with faults."""

    def __init__(self, spec: FaultySpec) -> None:
        super().__init__(spec)
        self._subjects = _FaultySubjects(self._subjects, spec.faults)


class _FaultySubjects:
    def __init__(self, inner: Any, faults: Mapping[str, str]) -> None:
        self._inner = inner
        self._faults = {name: Fault(fault) for name, fault in faults.items()}

    def find(self, candidate: Candidate) -> Subject:
        found = self._inner.find(candidate)
        fault = self._faults.get(candidate.name)
        return found if fault is None else replace(found, bind=_faulty(found.bind, fault))


def _faulty(bind: Bind, fault: Fault) -> Bind:
    calls = 0

    def bound(x: Operands, i: int) -> Callable[[], Any]:
        call = bind(x, i)

        def run() -> Any:
            nonlocal calls
            calls += 1
            result = call()
            _COMMIT[fault](next(iter(x.outputs.values())), calls)
            return result

        return run

    return bound


def _crash(out: Tensor, _calls: int) -> None:
    if not out.is_cuda:
        os.abort()
    # An index out of range is an assertion on the device, which ends the context.
    out.flatten()[torch.full((1,), 1 << 40, dtype=torch.int64, device=out.device)].sum().item()


def _hang(out: Tensor, _calls: int) -> None:
    if out.is_cuda:
        torch.cuda._sleep(HANG_CYCLES)
        torch.cuda.synchronize()
    while True:
        time.sleep(1)


def _refuse(_out: Tensor, _calls: int) -> None:
    raise RuntimeError("this variant was told to refuse")


def _spoil(value: float) -> Callable[[Tensor, int], None]:
    def spoil(out: Tensor, _calls: int) -> None:
        out[-1, -1] = value

    return spoil


def _write_outside(out: Tensor, _calls: int) -> None:
    first = out.storage_offset()
    behind = first + (out.shape[0] - 1) * out.stride(0) + out.shape[1]
    out.as_strided((1,), (1,), behind + GUARD_BYTES // 4 if out.is_contiguous() else behind).zero_()


def _change(out: Tensor, calls: int) -> None:
    if calls % 2 == 0:
        out[0, 0] = torch.nextafter(out[0, 0], torch.full_like(out[0, 0], torch.inf))


_COMMIT: dict[Fault, Callable[[Tensor, int], None]] = {
    Fault.CRASH: _crash,
    Fault.HANG: _hang,
    Fault.REFUSED: _refuse,
    Fault.NAN: _spoil(torch.nan),
    Fault.WRONG: _spoil(1e4),
    Fault.OUT_OF_BOUNDS: _write_outside,
    Fault.NOT_REPEATABLE: _change,
}


if __name__ == "__main__":
    run(lambda **spec: FaultyBench(FaultySpec(**spec)))
