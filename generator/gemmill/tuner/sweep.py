"""A sweep: workloads x candidates, measured by an executor, into a journal."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from gemmill.tuner.candidates import MOST, BuildFacts, Shortlist, shortlist_of
from gemmill.tuner.checking import Finding
from gemmill.tuner.choice import MARGIN, Agreement, Decision, agreement, decide
from gemmill.tuner.device import now
from gemmill.tuner.heuristics import Tile
from gemmill.tuner.journal import Journal
from gemmill.tuner.measure import Task, TaskOutcome, halving
from gemmill.tuner.protocol import Candidate
from gemmill.tuner.record import Entry, Record
from gemmill.tuner.workloads import Workload

ROUNDS = 15


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The care of a sweep, and the margin by which a variant is better."""

    rounds: int = ROUNDS
    most: int = MOST
    """The most variants to try for a workload."""
    margin: float = MARGIN
    repeats: int = 1
    peers: bool = True
    """Whether to time torch's own calls too."""
    vllm: bool = False
    """Whether to time vLLM's kernels too."""
    orders: bool = False
    """Whether to try the fastest variants of each order of K and time them to the end, for batch-invariant calls."""
    advice: Mapping[tuple[int, ...], Sequence[Tile]] = field(default_factory=dict)
    """Tiles of a second opinion, by sizes. The sweep tries them in addition to the model's."""


class TaskLost(Exception):  # noqa: N818  (it is what happened)
    """An unfinished task: its machine is gone, or its worker failed."""


Event = tuple[Task, TaskOutcome | TaskLost]
Found = Callable[[Workload, str, Finding], None]
"""A function that receives a workload's fault, with the candidate's name."""


class Executor(AbstractContextManager["Executor"], Protocol):
    """Runs tasks somewhere, until closed."""

    def facts(self) -> Mapping[str, Any]:
        """The device that a worker runs on. Raises TuneError where there is none."""
        ...

    def run(self, tasks: Sequence[Task], found: Found) -> Iterator[Event]:
        """The outcome of each task, as it is known; `found` may hear of faults before."""
        ...

    def close(self) -> None:
        """End all started processes."""
        ...

    def __exit__(self, *error: object) -> None:
        self.close()


class Observer:
    """An observer follows a sweep."""

    def planned(self, total: int, done: int) -> None:
        """The sweep has so many workloads, of which `done` were measured before."""

    def fault(self, workload: Workload, name: str, finding: Finding) -> None:
        """A candidate went wrong."""

    def measured(self, entry: Entry, decision: Decision | None) -> None:
        """A workload is done."""

    def lost(self, workload: Workload, reason: str) -> None:
        """A task was not finished."""


def run_sweep(
    workloads: Sequence[Workload],
    builds: Sequence[BuildFacts],
    executor: Executor,
    journal: Journal,
    options: SweepOptions,
    sm_count: int,
    observer: Observer | None = None,
    wave: int = 0,
) -> None:
    """Measure the workloads that the journal lacks. The observer hears of lost tasks, which wait for the next run."""
    observer = observer or Observer()
    keys = [(workload, repeat, wave) for repeat in range(options.repeats) for workload in workloads]
    observer.planned(len(keys), sum(key in journal.record.entries for key in keys))

    def found(workload: Workload, name: str, finding: Finding) -> None:
        if name not in journal.record.faults.get(workload, {}):
            journal.fault(workload, name, finding)
            observer.fault(workload, name, finding)

    for repeat in range(options.repeats):
        waiting = [p for p in workloads if (p, repeat, wave) not in journal.record.entries]
        fields = {workload: _field_of(workload, builds, sm_count, options) for workload in waiting}
        tasks = [
            _task(
                workload, fields[workload], champions(journal.record, workload, repeat, wave), journal.record, options
            )
            for workload in waiting
        ]
        for task, outcome in executor.run(tasks, found):
            workload = task.workload
            if isinstance(outcome, TaskLost):
                observer.lost(workload, str(outcome))
                continue
            for name, finding in outcome.findings.items():
                found(workload, name, finding)
            entry = Entry(outcome=outcome, repeat=repeat, wave=wave, present=fields[workload].present, date=now())
            journal.outcome(entry)
            observer.measured(entry, decide_entry(entry, options.margin))


def _field_of(workload: Workload, builds: Sequence[BuildFacts], sm_count: int, options: SweepOptions) -> Shortlist:
    advised = options.advice.get(workload.call.sizes, ())
    told = {"vllm": options.vllm, "orders": options.orders}
    return shortlist_of(workload, builds, sm_count, options.most, options.peers, advised, **told)


def _task(
    workload: Workload, found: Shortlist, champions: Iterable[Candidate], record: Record, options: SweepOptions
) -> Task:
    candidates = dict.fromkeys([*champions, *found.candidates])
    return Task(
        workload=workload,
        candidates=tuple(candidates),
        kept=found.present,
        stages=halving(options.rounds),
        known=dict(record.faults.get(workload, {})),
        orders=options.orders,
    )


def champions(record: Record, workload: Workload, repeat: int, wave: int) -> list[Candidate]:
    """The fastest of earlier waves, to time next to those of this one."""
    found = []
    for before in range(wave):
        entry = record.entries.get((workload, repeat, before))
        decision = decide_entry(entry) if entry is not None else None
        if entry is not None and decision is not None:
            found.append(Candidate(name=decision.fastest, build=entry.outcome.builds[decision.fastest]))
    return found


def variants_only(rounds_us: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    """Times of variants, without those of peers: a variant's name begins with its architecture."""
    return {name: us for name, us in rounds_us.items() if name.startswith("sm")}


def decide_entry(entry: Entry, margin: float = MARGIN) -> Decision | None:
    """The decision that an entry alone comes to."""
    return decide(variants_only(entry.outcome.rounds_us), entry.present, margin)


def final_entries(record: Record, repeat: int) -> dict[Workload, Entry]:
    """The entries of one run, by workload. The last wave has the champions of those before."""
    last: dict[Workload, Entry] = {}
    for key in sorted(record.entries, key=lambda key: key[2]):
        if key[1] == repeat:
            last[key[0]] = record.entries[key]
    return last


def runs_of(record: Record, repeats: int) -> dict[Workload, list[Entry]]:
    """The final entries of all runs, by workload."""
    runs: dict[Workload, list[Entry]] = {}
    for repeat in range(repeats):
        for workload, entry in final_entries(record, repeat).items():
            runs.setdefault(workload, []).append(entry)
    return runs


def decisions(record: Record, repeat: int, margin: float = MARGIN) -> dict[Workload, Decision]:
    """The decisions of one run, by workload."""
    found = {workload: decide_entry(entry, margin) for workload, entry in final_entries(record, repeat).items()}
    return {workload: decision for workload, decision in found.items() if decision is not None}


def agreement_of(record: Record, repeats: int, margin: float = MARGIN) -> list[Agreement]:
    """The agreement of every further run with the first."""
    first = decisions(record, 0, margin)
    return [agreement(first, decisions(record, repeat, margin), margin) for repeat in range(1, repeats)]
