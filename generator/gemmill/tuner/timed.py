"""The work of `gemmill time`: named variants on named sizes, checked and timed as a sweep does, and nothing written."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmill.manifest import Manifest
from gemmill.runtime.choosing import rejection
from gemmill.runtime.tuned import Machine
from gemmill.tuner.candidates import BuildFacts, build_facts, shortlist_of
from gemmill.tuner.executors import LocalExecutor
from gemmill.tuner.measure import Stage, Task, TaskOutcome
from gemmill.tuner.program import DRY_SM_COUNT
from gemmill.tuner.protocol import Candidate, WorkerSpec
from gemmill.tuner.sweep import Executor, TaskLost
from gemmill.tuner.workloads import Workload


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One variant, or a peer, on one workload."""

    workload: Workload
    name: str
    median_us: float | None
    """Microseconds of a call: the median of the rounds. None where it was not timed."""
    least_us: float | None
    tflops: float | None
    """Multiplications and additions a second, in 10^12."""
    gbps: float | None
    """Bytes that must be read and written, each once, a second, in 10^9."""
    chosen: bool
    """Whether a call of this size gets the variant."""
    fault: str
    """The reason why it was not timed; empty where it was."""


def time_variants(
    workloads: Sequence[Workload],
    build: tuple[Path, Manifest],
    names: frozenset[str] | None,
    *,
    rounds: int,
    most: int,
    peers: bool,
    dry_run: bool,
    executor_of: Callable[[WorkerSpec], Executor] = LocalExecutor,
) -> list[Timed]:
    """Time variants in rounds that alternate between them, the fastest of each workload first.

    names: the variants to time, without those that do not take a size, unless none does; None for the `most` that the
    model thinks best of. Raises TuneError.
    """
    folder, manifest = build
    spec = WorkerSpec(builds=() if dry_run else (str(folder),), dry_run=dry_run)
    with executor_of(spec) as executor:
        here = executor.facts()
        machine = Machine(
            arch=manifest.arch, device=here.get("gpu"), driver=here.get("driver"), nvcc=manifest.toolchain.nvcc
        )
        facts = build_facts(folder, manifest, machine)
        sms = here.get("sm_count") or DRY_SM_COUNT
        tasks, chosen, result = [], {}, []
        for workload in workloads:
            field = shortlist_of(workload, [facts], sms, most, peers)
            chosen[workload] = field.present
            candidates = field.candidates
            if names is not None:
                refused = refusals(facts, workload, names)
                if len(refused) == len(names):  # of a pattern's variants those count that take the size
                    result += [_untimed(workload, name, reason) for name, reason in refused.items()]
                named = [Candidate(name=name, build=str(folder)) for name in sorted(names - refused.keys())]
                candidates = (*named, *(candidate for candidate in field.candidates if candidate.is_peer))
            if not candidates:
                continue
            stages = (Stage(rounds=rounds, ratio=math.inf),)
            tasks.append(Task(workload=workload, candidates=candidates, kept=None, stages=stages))
        for task, outcome in executor.run(tasks, lambda *_: None) if tasks else ():
            result += _rows(task, outcome, chosen[task.workload])
    order = {workload: i for i, workload in enumerate(workloads)}
    return sorted(result, key=lambda row: (order[row.workload], row.median_us or math.inf, row.name))


def refusals(facts: BuildFacts, workload: Workload, names: frozenset[str]) -> dict[str, str]:
    """Which of the names cannot take a workload, and why."""
    reasons: dict[str, str] = {}
    for _, row, entry in facts.table.of(workload.family):
        if entry.name in names and reasons.get(entry.name) != "":
            reasons[entry.name] = rejection(row, workload.call) or ""
    found = {name: reasons.get(name, f"it is no kernel of {workload.op}") for name in sorted(names)}
    return {name: reason for name, reason in found.items() if reason}


def _rows(task: Task, outcome: TaskOutcome | TaskLost, chosen: str | None) -> list[Timed]:
    if isinstance(outcome, TaskLost):
        return [_untimed(task.workload, candidate.name, str(outcome)) for candidate in task.candidates]
    rows = []
    for candidate in task.candidates:
        if not (times := outcome.rounds_us.get(candidate.name)):
            finding = outcome.findings.get(candidate.name)
            fault = f"{finding.fault}: {finding.detail}" if finding else outcome.error or "it was not timed"
            rows.append(_untimed(task.workload, candidate.name, fault))
            continue
        us = statistics.median(times)
        rows.append(
            Timed(
                workload=task.workload,
                name=candidate.name,
                median_us=us,
                least_us=min(times),
                tflops=task.workload.flops / us / 1e6,
                gbps=task.workload.bytes / us / 1e3,
                chosen=candidate.name == chosen,
                fault="",
            )
        )
    return rows


def _untimed(workload: Workload, name: str, fault: str) -> Timed:
    return Timed(
        workload=workload,
        name=name,
        median_us=None,
        least_us=None,
        tflops=None,
        gbps=None,
        chosen=False,
        fault=fault,
    )
