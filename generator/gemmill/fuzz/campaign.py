"""A run gives batches of calls to processes under a watchdog.

It replaces a process that dies of a call. Then it makes the batch again call by call, so that it finds the call and
makes the others.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gemmill.fuzz.findings import FaultKind, Finding, FuzzError, FuzzSpec, finding_of
from gemmill.tuner.worker import Worker, WorkerDied, WorkerError

PROGRAM = "gemmill.fuzz.child"
BATCH = 64
"""Calls between two waits for the device; on a GPU four times as many."""
OPEN_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The length of a run."""

    calls: int | None = None
    seconds: float | None = None
    jobs: int = 1
    call_seconds: float = 30.0
    """Seconds after which a batch, and then a call, counts as hanging."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a run."""

    where: str
    seed: int
    calls: int
    legal: int
    broken: int
    left_out: int
    """The number of legal calls for which the build has no variant."""
    seconds: float
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True)
class Single:
    """The result of one call in a process of its own."""

    where: str
    call: str
    """The tensors and other arguments of the call, before something was broken."""
    broken: bool
    findings: tuple[Finding, ...]


def fuzz(spec: FuzzSpec, budget: Budget, found: Callable[[Finding], None] = lambda finding: None) -> Report:
    """Make random calls up to the budget, and call `found` for every finding at once. Raises FuzzError where none can
    be made.
    """
    return _Campaign(spec, budget, found).run()


def call_alone(spec: FuzzSpec, index: int, call_seconds: float = Budget.call_seconds) -> Single:
    """Make one call of a run in a process of its own. Raises FuzzError where that cannot be started."""
    with Worker(spec, PROGRAM) as worker:
        where, answer = _hello(worker), _alone(worker, index, call_seconds)
    findings = tuple(finding_of(spec, found) for found in answer["found"])
    return Single(where=where, call=answer["call"], broken=answer["broken"], findings=findings)


def _hello(worker: Worker) -> str:
    try:
        return str(worker.ask("hello", OPEN_SECONDS))
    except (WorkerDied, WorkerError) as error:
        raise FuzzError(f"the process that makes the calls cannot be started: {error}") from None


def _alone(worker: Worker, index: int, seconds: float) -> dict[str, Any]:
    """The process's answer to a call. For one that dies of it or cannot answer, the answer that the process would give."""
    try:
        answer: dict[str, Any] = worker.ask("only", seconds, index=index)
        return answer
    except WorkerDied as error:
        kind, detail = (FaultKind.HANG if error.hung else FaultKind.CRASH), str(error)
    except WorkerError as error:
        kind, detail = FaultKind.UNJUDGED, str(error)
    found = [{"kind": kind, "index": index, "detail": detail}]
    return {"tally": {"legal": 1}, "found": found, "call": "", "broken": False, "failed": True}


class _Campaign:
    def __init__(self, spec: FuzzSpec, budget: Budget, found: Callable[[Finding], None]) -> None:
        self._spec, self._budget, self._found = spec, budget, found
        self._lock = threading.Lock()
        self._next = 0
        self._tally: Counter[str] = Counter()
        self._findings: list[Finding] = []
        self._errors: list[BaseException] = []
        self._where = ""
        self._batch = 4 * BATCH if spec.gpu else BATCH
        self._deadline = float("inf")

    def run(self) -> Report:
        begun = time.monotonic()
        if self._budget.seconds is not None:
            self._deadline = begun + self._budget.seconds
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._budget.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        return Report(
            where=self._where,
            seed=self._spec.seed,
            calls=sum(self._tally.values()),
            legal=self._tally["legal"],
            broken=self._tally["broken"],
            left_out=self._tally["left_out"],
            seconds=time.monotonic() - begun,
            findings=tuple(sorted(self._findings, key=lambda finding: finding.index)),
        )

    def _work(self) -> None:
        try:
            with Worker(self._spec, PROGRAM) as worker:
                self._where = _hello(worker)
                while (batch := self._take()) is not None:
                    self._make(worker, *batch)
        except BaseException as error:
            with self._lock:
                self._errors.append(error)
                self._deadline = 0.0

    def _take(self) -> tuple[int, int] | None:
        """The next batch: its first index and its length."""
        with self._lock:
            left = self._batch if self._budget.calls is None else min(self._batch, self._budget.calls - self._next)
            if left <= 0 or time.monotonic() >= self._deadline:
                return None
            first, self._next = self._next, self._next + left
            return first, left

    def _make(self, worker: Worker, first: int, count: int) -> None:
        try:
            answer = worker.ask("run", self._budget.call_seconds, first=first, count=count)
        except (WorkerDied, WorkerError) as error:
            self._one_by_one(worker, first, count, str(error))
            return
        self._keep(answer)

    def _one_by_one(self, worker: Worker, first: int, count: int, reason: str) -> None:
        is_explained, is_fresh = False, True
        for index in range(first, first + count):
            if is_fresh:  # so that a call's own time is none of the process's
                _hello(worker)
            answer = _alone(worker, index, self._budget.call_seconds)
            is_fresh = "failed" in answer
            is_explained = is_explained or is_fresh
            self._keep(answer)
        if not is_explained:
            detail = f"calls {first} to {first + count - 1} in one process: {reason}; no call alone does that"
            self._keep({"found": [{"kind": FaultKind.NOT_REPEATABLE, "index": first, "detail": detail}], "tally": {}})

    def _keep(self, answer: dict[str, Any]) -> None:
        with self._lock:
            self._tally.update(answer["tally"])
            for found in answer["found"]:
                self._findings.append(finding_of(self._spec, found))
                self._found(self._findings[-1])
