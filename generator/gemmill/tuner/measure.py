"""One workload measured: every candidate checked, then timed in rounds that alternate between them, fewer each stage.

Whatever a candidate does to the measuring process is its own finding; the others go on in a fresh process.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from gemmill.tuner.checking import Fault, Finding
from gemmill.tuner.device import Monitor
from gemmill.tuner.orders import fastest_of_orders
from gemmill.tuner.protocol import Candidate, workload_to_json
from gemmill.tuner.timing import calls_in_round, shuffled
from gemmill.tuner.worker import Worker, WorkerDied, WorkerError
from gemmill.tuner.workloads import Workload

OPEN_SECONDS = 120.0
CHECK_SECONDS = 20.0
ROUND_SECONDS = 30.0
MOST_OPENINGS = 2
"""Attempts to open a workload. A process that dies of the workload itself does so again."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Some rounds for all remaining candidates. Those within `ratio` of the fastest go on."""

    rounds: int
    ratio: float


@dataclass(frozen=True, kw_only=True)
class Task:
    """The candidates of one workload that one process is to measure."""

    workload: Workload
    candidates: tuple[Candidate, ...]
    kept: str | None
    """The candidate that no stage drops: today's choice."""
    stages: tuple[Stage, ...]
    known: Mapping[str, Finding] = field(default_factory=dict)
    """Faults found before: the sweep does not try these candidates again."""
    orders: bool = False
    """Whether no stage drops the fastest of an order of K either."""


@dataclass(frozen=True, kw_only=True)
class TaskOutcome:
    """The result of a task."""

    workload: Workload
    rounds_us: Mapping[str, tuple[float, ...]]
    """A time for each round in which a candidate took part, by candidate. The first rounds come first."""
    findings: Mapping[str, Finding]
    builds: Mapping[str, str] = field(default_factory=dict)
    """The build of each measured candidate."""
    device: Mapping[str, Any] = field(default_factory=dict)
    """The device of the process."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """Clocks, power and throttling meanwhile."""
    checking_seconds: float = 0.0
    seconds: float = 0.0
    error: str | None = None
    """The reason why nothing was measured."""


def halving(rounds: int) -> tuple[Stage, ...]:
    """Stages that come to `rounds` for the last candidates. One round shows the hopeless, two more the rest of the
    slow.
    """
    first, second = min(1, rounds), max(0, min(2, rounds - 1))
    stages = (
        Stage(rounds=first, ratio=1.5),
        Stage(rounds=second, ratio=1.12),
        Stage(rounds=rounds - first - second, ratio=math.inf),
    )
    return tuple(stage for stage in stages if stage.rounds)


def measure(
    worker: Worker, task: Task, found: Callable[[str, Finding], None] = lambda name, finding: None
) -> TaskOutcome:
    """Measure a task, and call `found` for every fault at once. Raises only for faults of the machine itself."""
    return _Measuring(worker, task, found).run()


class _Unopenable(Exception):  # noqa: N818
    """The workload itself cannot be measured here."""


class _Measuring:
    def __init__(self, worker: Worker, task: Task, found: Callable[[str, Finding], None]) -> None:
        self._worker = worker
        self._task = task
        self._found = found
        self._findings: dict[str, Finding] = dict(task.known)
        self._candidates = {c.name: c for c in task.candidates if c.name not in task.known}
        self._rounds: dict[str, list[float]] = {}
        self._calls = calls_in_round(task.workload)
        self._prepared: set[str] = set()

    def run(self) -> TaskOutcome:
        begun = perf_counter()
        try:
            device = self._worker.ask("hello", OPEN_SECONDS)
            self._open()
            with Monitor.of(device.get("uuid")) as monitor:
                self._check_all()
                checked = perf_counter()
                self._time_all()
        except (_Unopenable, WorkerDied, WorkerError) as error:
            return TaskOutcome(
                workload=self._task.workload,
                rounds_us={},
                findings=self._findings,
                error=str(error),
                seconds=perf_counter() - begun,
            )
        return TaskOutcome(
            workload=self._task.workload,
            rounds_us={name: tuple(us) for name, us in self._rounds.items()},
            findings=self._findings,
            builds={name: self._candidates[name].build for name in self._rounds},
            device=device,
            state=monitor.summary(),
            checking_seconds=checked - begun,
            seconds=perf_counter() - begun,
        )

    def _open(self) -> None:
        self._prepared = set()
        for attempt in range(MOST_OPENINGS):
            try:
                self._worker.ask("open", OPEN_SECONDS, workload=workload_to_json(self._task.workload))
                return
            except WorkerError as error:
                raise _Unopenable(f"its operands cannot be made: {error}") from None
            except WorkerDied as error:
                if attempt + 1 == MOST_OPENINGS:
                    raise _Unopenable(f"its operands cannot be made: {error}") from None

    def _check_all(self) -> None:
        for name, candidate in self._candidates.items():
            answer = self._try(name, "check", CHECK_SECONDS, name=name, build=candidate.build)
            if isinstance(answer, dict):
                self._fault(name, Finding(fault=Fault(answer["fault"]), detail=answer["detail"]))

    def _time_all(self) -> None:
        running = [name for name in self._candidates if name not in self._findings]
        self._rounds = {name: [] for name in running}
        turn = 0
        for stage in self._task.stages:
            for _ in range(stage.rounds):
                self._round(running, turn)
                running = [name for name in running if name not in self._findings]
                turn += 1
            running = self._kept(running, stage)
        for name in running:
            self._ask_quietly("drop", name)

    def _round(self, running: Sequence[str], turn: int) -> None:
        """Time each candidate once, in the turn's own order."""
        for name in shuffled(running, turn):
            if name not in self._prepared and not self._prepare(name):
                continue
            us = self._try(name, "round", ROUND_SECONDS, name=name)
            if us is not None:
                self._rounds[name].append(float(us))

    def _prepare(self, name: str) -> bool:
        candidate = self._candidates[name]
        self._try(name, "prepare", CHECK_SECONDS, name=name, build=candidate.build, calls=self._calls)
        if name in self._findings:
            return False
        self._prepared.add(name)
        return True

    def _kept(self, running: Sequence[str], stage: Stage) -> list[str]:
        medians = {name: statistics.median(self._rounds[name]) for name in running if self._rounds[name]}
        if not medians or stage.ratio == math.inf:
            return list(medians)
        limit = stage.ratio * min(medians.values())
        variants = {name: us for name, us in medians.items() if not self._candidates[name].is_peer}
        spared = {self._task.kept, *(fastest_of_orders(variants) if self._task.orders else ())}
        kept = [name for name, us in medians.items() if us <= limit or name in spared or name not in variants]
        for name in medians.keys() - set(kept):
            self._ask_quietly("drop", name)
            self._prepared.discard(name)
        return kept

    def _try(self, name: str, command: str, timeout: float, /, **arguments: Any) -> Any:
        """The answer of the process. None for a faulty candidate, whose fault it notes."""
        try:
            return self._worker.ask(command, timeout, **arguments)
        except WorkerError as error:
            self._fault(name, Finding(fault=Fault.REFUSED, detail=str(error)))
        except WorkerDied as error:
            self._fault(name, Finding(fault=Fault.HANG if error.hung else Fault.CRASH, detail=str(error)))
            self._open()
        return None

    def _fault(self, name: str, finding: Finding) -> None:
        self._findings[name] = finding
        self._rounds.pop(name, None)
        self._found(name, finding)

    def _ask_quietly(self, command: str, name: str) -> None:
        try:
            self._worker.ask(command, ROUND_SECONDS, name=name)
        except WorkerError:
            return
        except WorkerDied:
            self._open()
