"""A workload measured by a real process: whatever a candidate does, the others get their times."""

import contextlib
import os
import select
import signal
import subprocess
import sys

import pytest

from faulty import HERE, FaultySpec
from gemmill.tuner import measure as measuring
from gemmill.tuner.checking import Fault, Finding
from gemmill.tuner.measure import Task, halving, measure
from gemmill.tuner.protocol import PEER, Candidate
from gemmill.tuner.timing import shuffled
from gemmill.tuner.worker import Worker, WorkerDied, WorkerError
from gemms import MeasuredOp, Workload, gemm

WORKLOAD = gemm(op=MeasuredOp.FP8, m=40, n=64, k=64)
GOOD = ("sm_good", "sm_other")


def task(*names: str, workload: Workload = WORKLOAD, **changes: object) -> Task:
    candidates = tuple(Candidate(name=name, build="b") for name in (*names, *GOOD))
    return Task(**({"workload": workload, "candidates": candidates, "kept": None, "stages": halving(4)} | changes))


@pytest.fixture
def worker(monkeypatch):
    """A dry process whose candidates of these names have these faults."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    spec = FaultySpec(builds=(), dry_run=True, faults={f"sm_{f.name.lower()}": f for f in Fault})
    with Worker(spec, "faulty") as found:
        yield found


def test_every_fault_is_found_and_the_others_are_timed(worker, monkeypatch) -> None:
    monkeypatch.setattr(measuring, "CHECK_SECONDS", 5.0)
    told = []
    outcome = measure(worker, task(*(f"sm_{f.name.lower()}" for f in Fault)), lambda name, finding: told.append(name))
    assert {name: finding.fault for name, finding in outcome.findings.items()} == {
        f"sm_{fault.name.lower()}": fault for fault in Fault
    }
    assert sorted(told) == sorted(outcome.findings)
    assert set(GOOD) <= set(outcome.rounds_us) and not set(outcome.findings) & set(outcome.rounds_us)
    assert worker.starts == 3, "one process, another after the crash, another after the hang"
    details = {finding.fault: finding.detail for finding in outcome.findings.values()}
    assert details[Fault.CRASH] == "its process ended at check by signal 6"
    assert details[Fault.HANG] == "no answer to check within 5 s: it was killed"
    assert details[Fault.REFUSED] == "this variant was told to refuse"
    assert details[Fault.OUT_OF_BOUNDS] == "bytes around its output changed, rows 0 elements apart"
    assert details[Fault.NOT_REPEATABLE] == "1 of 2560 elements differ between two calls with the same operands"
    assert details[Fault.NAN].startswith("of the rows looked at, 1 of 2560 elements are wrong, in rows 39..39")


SWEEP = """
import os, sys, threading
from faulty import FaultySpec
from gemmill.tuner.worker import Worker

worker = Worker(FaultySpec(builds=(), dry_run=True, faults={"sm_hang": "hang"}), "faulty")
thread = threading.Thread(target=worker.ask, args=("open", 300.0), kwargs={"workload": ["fp8", 3, 16, 16]})
thread.start()
thread.join()
print(worker._process.pid, flush=True)
worker.ask("check", 300.0, name="sm_hang", build="b")
"""


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_hangs_ends_with_the_sweep(ends: signal.Signals) -> None:
    """However the sweep is killed; not with the thread that started the process, which ends before it is asked again."""
    environment = os.environ | {"PYTHONPATH": f"{HERE.parent / 'generator'}:{HERE}"}
    sweep = subprocess.Popen([sys.executable, "-c", SWEEP], env=environment, stdout=subprocess.PIPE, text=True)
    measuring_process = os.pidfd_open(int(sweep.stdout.readline()))
    try:
        assert not select.select([measuring_process], [], [], 1)[0], "it hangs"
        sweep.send_signal(ends)
        sweep.wait()
        assert select.select([measuring_process], [], [], 30)[0], "it outlives the sweep"
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(measuring_process, signal.SIGKILL)
        os.close(measuring_process)
        sweep.kill()
        sweep.wait()


def test_what_is_known_to_be_at_fault_is_not_tried(worker) -> None:
    known = {"sm_hang": Finding(fault=Fault.HANG, detail="before")}
    outcome = measure(worker, task("sm_hang", known=known))
    assert outcome.findings == known and set(outcome.rounds_us) == set(GOOD)
    assert worker.starts == 1


def test_other_operands_zero_points_and_groups(worker) -> None:
    for op, k in (
        (MeasuredOp.INT8, 48),
        (MeasuredOp.INT8_AZP, 48),
        (MeasuredOp.FP8_GROUPS, 300),
        (MeasuredOp.FP8_GROUPS_32, 300),
        (MeasuredOp.BF16, 48),
    ):
        outcome = measure(worker, task("sm_wrong", workload=gemm(op=op, m=3, n=144, k=k)))
        assert set(outcome.rounds_us) == set(GOOD)
        assert [finding.fault for finding in outcome.findings.values()] == [Fault.WRONG]


def test_a_workload_that_cannot_be_opened_is_an_outcome(worker, monkeypatch) -> None:
    asked = worker.ask

    def ask(command, timeout, /, **arguments):
        if command == "open":
            raise WorkerError("out of memory")
        return asked(command, timeout, **arguments)

    monkeypatch.setattr(worker, "ask", ask)
    outcome = measure(worker, task())
    assert (outcome.error, outcome.rounds_us) == ("its operands cannot be made: out of memory", {})


def test_a_process_that_dies_at_every_opening_ends_the_workload_only(worker, monkeypatch) -> None:
    opened = []

    def ask(command, timeout, /, **arguments):
        if command != "open":
            return {"uuid": None}
        opened.append(1)
        raise WorkerDied("its process ended", hung=False)

    monkeypatch.setattr(worker, "ask", ask)
    assert measure(worker, task()).error == "its operands cannot be made: its process ended"
    assert len(opened) == 2


class Scripted:
    """A worker with given times, some of them deaths."""

    def __init__(self, us: dict[str, list]) -> None:
        self.us = us
        self.log: list[str] = []

    def ask(self, command, timeout, /, name="", **arguments):
        self.log.append(f"{command} {name}".strip())
        if command != "round":
            return {"uuid": None} if command == "hello" else None
        value = self.us[name].pop(0)
        if isinstance(value, Exception):
            raise value
        return value


def scripted(**us: list) -> tuple[Scripted, Task]:
    worker = Scripted(us)
    candidates = tuple(Candidate(name=name, build=PEER if name == "peer" else "b") for name in us)
    return worker, task(candidates=candidates)


def test_the_slow_are_dropped_stage_by_stage() -> None:
    worker, todo = scripted(a=[1.0] * 4, b=[1.4, 1.0, 1.3], c=[1.6], d=[1.05] * 4, peer=[9.0] * 4, kept=[8.0] * 4)
    outcome = measure(worker, Task(**{**vars(todo), "kept": "kept"}))
    assert {name: len(us) for name, us in outcome.rounds_us.items()} == {
        "a": 4,
        "b": 3,
        "c": 1,
        "d": 4,
        "peer": 4,
        "kept": 4,
    }
    assert "drop c" in worker.log and "drop b" in worker.log


def test_each_round_has_its_own_order() -> None:
    worker, todo = scripted(a=[1.0] * 4, b=[1.0] * 4)
    measure(worker, todo)
    order = [line.split()[1] for line in worker.log if line.startswith("round")]
    assert order == [name for turn in range(4) for name in shuffled(["a", "b"], turn)]


def test_a_death_while_timing_is_the_candidates_own() -> None:
    worker, todo = scripted(a=[1.0] * 4, b=[1.0, WorkerDied("gone", hung=False)], c=[1.0] * 4)
    outcome = measure(worker, todo)
    assert outcome.findings == {"b": Finding(fault=Fault.CRASH, detail="gone")}
    assert {name: len(us) for name, us in outcome.rounds_us.items()} == {"a": 4, "c": 4}
    assert worker.log.count("open") == 2
    assert worker.log.count("prepare a") == 2, "graphs are gone with the process"


def test_stages_come_to_the_rounds_asked_for() -> None:
    for rounds in (1, 2, 3, 9):
        assert sum(stage.rounds for stage in halving(rounds)) == rounds
