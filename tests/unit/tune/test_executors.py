"""Measuring processes of this machine, one for each GPU."""

import threading
from pathlib import Path

import pytest

from gemmill.space.selections import select
from gemmill.tuner import executors
from gemmill.tuner.executors import LocalExecutor, visible_device
from gemmill.tuner.measure import Task, TaskOutcome
from gemmill.tuner.program import TuneRequest, stand_in_build, tune
from gemmill.tuner.protocol import WorkerSpec
from gemmill.tuner.sweep import SweepOptions
from gemms import MeasuredOp, gemm

WORKLOADS = [gemm(op=MeasuredOp.FP8, m=m, n=64, k=128) for m in (1, 16, 64)]
DRY = WorkerSpec(builds=(), dry_run=True)
TASKS = [Task(workload=workload, candidates=(), kept=None, stages=()) for workload in WORKLOADS]


class Settled:
    """A measuring process that answers at once."""

    def __init__(self, spec, program, device) -> None:
        self.device, self.asked, self.closed = device, [], False

    def ask(self, command, timeout, /, **arguments):
        self.asked.append(command)
        return {"device": self.device}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def two(monkeypatch) -> LocalExecutor:
    monkeypatch.setattr(executors, "Worker", Settled)
    return LocalExecutor(DRY, devices=["3", "5"])


def outcome_of(task: Task) -> TaskOutcome:
    return TaskOutcome(workload=task.workload, rounds_us={}, findings={})


def test_two_processes_give_the_same_table_as_one(tmp_path: Path, home) -> None:
    def request_of(name: str) -> TuneRequest:
        return TuneRequest(
            workloads=WORKLOADS,
            builds=[stand_in_build(select("smoke"))],
            options=SweepOptions(rounds=2),
            journal=tmp_path / f"{name}.jsonl",
            dry_run=True,
        )

    alone = tune(request_of("alone"))
    together = tune(request_of("together"), executor_of=lambda spec: LocalExecutor(spec, devices=["0", "1"]))
    rows = [[(row.key, row.variants, row.us) for row in result.tables[0][1].rows] for result in (alone, together)]
    assert rows[0] == rows[1] and len(rows[0]) == 3


def test_both_measure_at_the_same_time(two: LocalExecutor, monkeypatch) -> None:
    """The first two tasks each wait for the other."""
    met = threading.Barrier(2, timeout=20)
    ran: dict[str, list[int]] = {"3": [], "5": []}

    def measure(worker, task, found):
        ran[worker.device].append(task.workload.step)
        if sum(map(len, ran.values())) <= 2 and met.n_waiting < 2:
            met.wait()
        return outcome_of(task)

    monkeypatch.setattr(executors, "measure", measure)
    found = list(two.run(TASKS[:2], lambda *fault: None))
    assert sorted(task.workload.step for task, _ in found) == [1, 16]
    assert sorted(map(len, ran.values())) == [1, 1]


def test_faults_are_told_in_the_thread_of_the_sweep(two: LocalExecutor, monkeypatch) -> None:
    def measure(worker, task, found):
        found("a variant", f"wrong at {task.workload.step}")
        return outcome_of(task)

    monkeypatch.setattr(executors, "measure", measure)
    told = []
    events = two.run(TASKS, lambda *fault: told.append((threading.current_thread(), *fault)))
    assert len(list(events)) == 3
    assert {where for where, *_ in told} == {threading.current_thread()}
    assert sorted(what for *_, what in told) == ["wrong at 1", "wrong at 16", "wrong at 64"]


def test_an_error_ends_the_sweep_and_leaves_what_waits(two: LocalExecutor, monkeypatch) -> None:
    ran = []

    def measure(worker, task, found):
        ran.append(task)
        raise KeyError("a bug")

    monkeypatch.setattr(executors, "measure", measure)
    with pytest.raises(KeyError, match="a bug"):
        list(two.run(TASKS * 10, lambda *fault: None))
    assert len(ran) <= 2


def test_no_task_starts_no_measuring(two: LocalExecutor) -> None:
    assert list(two.run([], lambda *fault: None)) == []
    assert [worker.asked for worker in two._workers] == [[], []]


def test_all_processes_are_started_and_ended(two: LocalExecutor) -> None:
    assert two.facts() == {"device": "3"}
    assert [worker.asked for worker in two._workers] == [["hello"], ["hello"]]
    two.close()
    assert all(worker.closed for worker in two._workers)


def test_devices_are_named_as_this_process_sees_them(monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    assert [visible_device(i) for i in range(2)] == ["3", "5"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_device(1) == "1"
