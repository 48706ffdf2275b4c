"""The process that runs candidates: `python -m gemmill.tuner.bench SPEC`. It may be killed at any time.

Commands come as JSON lines on stdin. Answers go as JSON lines to the file descriptor named in SPEC, so that nothing
that a library prints can be taken for one. A candidate's fault is an answer; the sweep sees faults of this process, as
an abort or a dead context.
"""

import fcntl
import hashlib
import json
import os
import select
import sys
import traceback
from collections.abc import Callable
from typing import IO, Any

import torch

from gemmill.numerics.cases import cases_of_family
from gemmill.numerics.measured import ROTATED_BYTES, Expected, Maker, Operands, as_they_are, results_of
from gemmill.numerics.memory import Memory, bits_of
from gemmill.registry import REGISTRY
from gemmill.tuner.checking import GUARD_BYTES, PAD, Fault, Finding, GuardedArena
from gemmill.tuner.device import driver_version
from gemmill.tuner.protocol import Candidate, WorkerSpec, first_line, workload_from_json
from gemmill.tuner.subjects import ARENA_BYTES, LoadedSubjects, StandIns, Subject
from gemmill.tuner.timing import Graph, settle
from gemmill.tuner.workloads import Workload

DRY_ROTATED_BYTES = 4096
POISONS = (0xFF, 0xBF)
"""The bytes that fill memory: 0xFF makes NaN of all float types, 0xBF of none."""
DEAD_CONTEXT = ("CUDA error", "CUDA driver error", "device-side assert", "illegal memory access")
"""Words in the text of an error after which a CUDA context is of no more use."""


Results = dict[str, torch.Tensor]


class Bench:
    """The commands that a sweep may give; there is one workload at a time."""

    def __init__(self, spec: WorkerSpec) -> None:
        if not (spec.dry_run or torch.cuda.is_available()):
            raise RuntimeError(
                "no GPU that torch can use; --dry-run runs the whole sweep without one, with invented times"
            )
        self._spec = spec
        if spec.dry_run:
            torch.set_num_threads(1)  # several such processes share the cores, and the shapes are small
        self._device = torch.device("cpu" if spec.dry_run else "cuda")
        self._makers: dict[str, Maker] = {}
        self._subjects = StandIns() if spec.dry_run else LoadedSubjects(spec)
        self._arena: GuardedArena | None = None
        self._operands: Operands | None = None
        self._exact: Operands | None = None
        self._expected: dict[tuple[bool, Callable[[Any], Any]], Expected] = {}
        """Of exact operands or others, and by how a peer is given them."""
        self._prepared: dict[str, Graph | _Invented] = {}

    def hello(self) -> dict[str, Any]:
        """The device and software of this process."""
        facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "driver": driver_version()}
        if self._device.type == "cpu":
            return facts | {"gpu": None}
        properties = torch.cuda.get_device_properties(0)
        return facts | {
            "gpu": properties.name,
            "sm_count": properties.multi_processor_count,
            "uuid": str(properties.uuid),
            "l2_bytes": properties.L2_cache_size,
        }

    def settle(self) -> float:
        """Bring the clocks to where they stay; returns the seconds that took."""
        if self._spec.dry_run:
            return 0.0
        a = torch.randn(4096, 4096, device=self._device, dtype=torch.bfloat16)
        return settle(lambda: torch.mm(a, a))

    def open(self, workload: list[Any]) -> None:
        """Make the operands and the reference of a workload, and forget those of the last."""
        self.close()
        asked = workload_from_json(workload)
        maker = self._maker(asked.family)
        self._operands = maker.make(asked)
        self._exact = maker.exact(self._operands)
        self._expected = {(False, as_they_are): self._operands.expected()}
        if self._exact is not None:
            self._expected[True, as_they_are] = self._exact.expected()
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def check(self, name: str, build: str) -> dict[str, str] | None:
        """The fault of a candidate's result on poisoned memory, if there is one."""
        subject = self._subjects.find(Candidate(name=name, build=build))
        finding = self._check(subject)
        return None if finding is None else {"fault": finding.fault.value, "detail": finding.detail}

    def prepare(self, name: str, build: str, calls: int) -> None:
        """Make a candidate ready to be timed, `calls` calls or more in a round."""
        operands = self._opened
        candidate = Candidate(name=name, build=build)
        subject = self._subjects.find(candidate)
        if self._spec.dry_run:
            self._prepared[name] = _Invented(name, operands.workload)
            return
        given = subject.given(operands)
        with subject.pinned():
            self._prepared[name] = Graph([subject.bind(given, i) for i in range(given.copies)], calls)

    def round(self, name: str) -> float:
        """Microseconds of one call."""
        return self._prepared[name].round()

    def drop(self, name: str) -> None:
        """Free the memory of a candidate's preparation."""
        if (prepared := self._prepared.pop(name, None)) is not None:
            prepared.close()

    def close(self) -> None:
        """Free the memory of the preparation."""
        for name in list(self._prepared):
            self.drop(name)

    @property
    def _opened(self) -> Operands:
        if self._operands is None:
            raise RuntimeError("no workload is open")
        return self._operands

    def _check(self, subject: Subject) -> Finding | None:
        operands = self._opened
        if subject.workspace and self._arena is None:
            self._arena = GuardedArena(ARENA_BYTES, self._device)
        # The poison differs, which shows a kernel that leaves elements alone, or adds to them.
        first = self._call(subject, operands, 0, POISONS[0])
        if isinstance(first, Finding):
            return first
        if subject.complete and (found := self._judge(subject, operands, first)):
            return found
        second = self._call(subject, operands, PAD, POISONS[1])
        if isinstance(second, Finding):
            return second
        if subject.complete and (differ := _differ(first, second)):
            elements = sum(result.numel() for result in first.values())
            return Finding(
                fault=Fault.NOT_REPEATABLE,
                detail=f"{differ} of {elements} elements differ between two calls with the same operands",
            )
        if self._exact is None or not subject.complete:
            return None
        third = self._call(subject, self._exact, 0, POISONS[0])
        return third if isinstance(third, Finding) else self._judge(subject, self._exact, third)

    def _call(self, subject: Subject, operands: Operands, pad: int, poison: int) -> Results | Finding:
        """The results on poisoned memory, their rows `pad` elements apart, or the writes outside them."""
        memory = Memory(operands.slots(pad), self._device, GUARD_BYTES)
        memory.bytes.fill_(poison)
        before = memory.bytes.clone()
        given = subject.given(operands.writing({name: memory.tensor(name) for name in memory.slots}))
        with subject.pinned(), subject.workspace_in(self._arena):
            returned = subject.bind(given, 0)()
            if self._device.type == "cuda":
                torch.cuda.synchronize()
        if memory.changed(before, written=True).any():
            return Finding(
                fault=Fault.OUT_OF_BOUNDS, detail=f"bytes around its output changed, rows {pad} elements apart"
            )
        if subject.workspace and self._arena is not None and not self._arena.is_intact():
            return Finding(fault=Fault.OUT_OF_BOUNDS, detail="bytes around its workspace changed")
        return results_of(given, returned)

    def _judge(self, subject: Subject, operands: Operands, results: Results) -> Finding | None:
        """The fault of results, if there is one."""
        key = operands is self._exact, subject.given
        if key not in self._expected:
            self._expected[key] = subject.given(operands).expected()
        found = self._expected[key].compare(results)
        if found.ok:
            return None
        fault = Fault.NAN if found.unwritten else Fault.WRONG
        return Finding(fault=fault, detail=f"of the rows looked at{operands.words}, {found.report}")

    def _maker(self, family: str) -> Maker:
        if family not in self._makers:
            measured = cases_of_family(REGISTRY.named(family)).measured
            if measured is None:
                raise ValueError(f"{family} has no operands to measure")
            rotated = DRY_ROTATED_BYTES if self._spec.dry_run else ROTATED_BYTES
            self._makers[family] = measured(self._device, rotated)
        return self._makers[family]


def _differ(first: Results, second: Results) -> int:
    """The number of elements that differ, by their bits: NaN is equal to itself, and -0 is not 0."""
    return sum(int((bits_of(first[name]) != bits_of(second[name])).sum()) for name in first)


class _Invented:
    """Times of a dry run. Like those of a GPU they depend on candidate and workload, and vary a little."""

    def __init__(self, name: str, workload: Workload) -> None:
        self._name, self._turn = name, 0
        self._us = 2.0 + workload.bytes / 4.2e6 + workload.flops / 1.4e9

    def round(self) -> float:
        self._turn += 1
        slowness = 1.2 + _fraction(self._name, self._us)
        return self._us * slowness * (1 + 0.01 * _fraction(self._name, self._turn))

    def close(self) -> None:
        """It holds nothing."""


def _fraction(*parts: object) -> float:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big") / 2**32


def serve(commands: IO[str], answers: IO[str], make: Callable[[], Any]) -> None:
    """Answer {"do": name, ...arguments} with {"ok": true, "value": ...} or {"ok": false, ...} until the input ends."""
    bench: Any = None
    for line in commands:
        command = json.loads(line)
        try:
            bench = bench or make()
            answer = {"ok": True, "value": getattr(bench, command.pop("do"))(**command)}
        except Exception as error:
            text = first_line(error)
            dead = any(words in str(error) for words in DEAD_CONTEXT)
            answer = {"ok": False, "dead": dead or bench is None, "error": text}
            if not isinstance(error, (RuntimeError, ValueError, TypeError, LookupError)):
                traceback.print_exc()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def end_with(lifeline: int) -> None:
    """The kernel ends this process when the other end of the pipe closes, whatever it does then.

    A hung candidate may hold the interpreter, so no thread could end it. PR_SET_PDEATHSIG would end it with the thread
    that started it. SIGIO, unhandled, ends a process.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:
        sys.exit("the process that started this one has ended")


def run(make: Callable[..., Any]) -> None:
    """Serve as a program: `make` takes the fields of the Worker's spec."""
    spec = {name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(sys.argv[1]).items()}
    end_with(spec.pop("lifeline"))
    with os.fdopen(spec.pop("answers"), "w", encoding="utf-8") as answers:
        serve(sys.stdin, answers, lambda: make(**spec))


if __name__ == "__main__":
    run(lambda **spec: Bench(WorkerSpec(**spec)))
