"""A whole dry sweep: journal, interruption, resumption, tables, and an executor's lost tasks."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faulty import HERE, FaultyBench, FaultySpec
from gemmill.runtime.table_file import read_table
from gemmill.space.selections import select
from gemmill.tuner.bench import Bench
from gemmill.tuner.candidates import MOST
from gemmill.tuner.checking import Fault, Finding
from gemmill.tuner.executors import LocalExecutor
from gemmill.tuner.journal import Entry, Journal, JournalError, read_journal
from gemmill.tuner.measure import TaskOutcome
from gemmill.tuner.program import TuneRequest, stand_in_build, tune
from gemmill.tuner.sweep import Observer, SweepOptions, TaskLost
from gemmill.tuner.worker import WorkerError
from gemms import MeasuredOp, Workload, gemm

SOURCES = Path(__file__).parents[3] / "generator"
WORKLOADS = [gemm(op=MeasuredOp.FP8, m=m, n=64, k=128) for m in (1, 16, 64)]
WRONG = "sm90a_cutlass_e4m3_e4m3_f32_bf16_scaledbias_channel_t64x16x256_c1x1x1_basic_fast_splitk_swapab_s4_a16b16d8"


@pytest.fixture
def request_of(tmp_path, home):
    def make(**changes: object) -> TuneRequest:
        settings = {
            "workloads": WORKLOADS,
            "builds": [stand_in_build(select("smoke"))],
            "options": SweepOptions(rounds=3),
            "journal": tmp_path / "j.jsonl",
            "table": tmp_path / "table.json",
            "dry_run": True,
        }
        return TuneRequest(**(settings | changes))

    return make


class DirectWorker:
    """Answers in this process: other processes take seconds to start."""

    def __init__(self, spec) -> None:
        self._bench = FaultyBench(spec) if isinstance(spec, FaultySpec) else Bench(spec)

    def ask(self, command, timeout, /, **arguments):
        try:
            return getattr(self._bench, command)(**arguments)
        except RuntimeError as error:
            raise WorkerError(str(error)) from None

    def close(self) -> None:
        """Nothing was started."""


class Direct(LocalExecutor):
    """An executor without a process."""

    def __init__(self, spec) -> None:
        self._workers = [DirectWorker(spec)]


def faulty(spec, fault: Fault) -> FaultySpec:
    return FaultySpec(**vars(spec), faults={WRONG: fault})


def test_a_sweep_writes_journal_and_table(request_of, tmp_path, monkeypatch) -> None:
    """With a real process; the tests below do without."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    result = tune(
        request_of(options=SweepOptions(rounds=3, repeats=2)),
        executor_of=lambda spec: LocalExecutor(faulty(spec, Fault.WRONG), "faulty"),
    )
    table = read_table(tmp_path / "table.json")
    assert [row.key for row in table.rows] == [("fp8", 64, 128, m) for m in (1, 16, 64)]
    assert all(WRONG not in row.variants and row.us[0] > 0 for row in table.rows)
    (source,) = table.sources.values()
    assert (source.program, source.build) == ("gemmill tune", "dry-run")
    (agreed,) = result.agreements
    assert agreed.workloads == 3
    record = read_journal(tmp_path / "j.jsonl")
    assert len(record.entries) == 6
    assert {workload: list(found) for workload, found in record.faults.items()} == {key: [WRONG] for key in WORKLOADS}
    first = next(iter(record.entries.values())).outcome
    assert "torch row-wise" in first.rounds_us and first.builds["torch row-wise"] == "peer"


def test_rows_of_other_shapes_stay(request_of, tmp_path) -> None:
    tune(request_of(workloads=WORKLOADS[:1]), executor_of=Direct)
    tune(request_of(workloads=WORKLOADS[1:], journal=tmp_path / "other.jsonl"), executor_of=Direct)
    assert len(read_table(tmp_path / "table.json").rows) == 3


class Counting(Direct):
    """Counts its tasks, and is interrupted before the `limit`th."""

    limit = 99
    ran = 0

    def run(self, tasks, found):
        for event in super().run(tasks, found):
            type(self).ran += 1
            yield event
            if type(self).ran >= self.limit:
                raise KeyboardInterrupt


@pytest.fixture
def counting():
    return type("Fresh", (Counting,), {"ran": 0})


def test_an_interrupted_sweep_goes_on(request_of, counting, tmp_path) -> None:
    counting.limit = 1
    with pytest.raises(KeyboardInterrupt):
        tune(request_of(), executor_of=counting)
    assert len(read_journal(tmp_path / "j.jsonl").entries) == 1
    counting.limit = 99
    heard = []

    class Hears(Observer):
        def planned(self, total: int, done: int) -> None:
            heard.append((total, done))

    tune(request_of(), Hears(), executor_of=counting)
    assert (counting.ran, heard) == (3, [(3, 1)])
    tune(request_of(), executor_of=counting)
    assert counting.ran == 3, "all is known"


def test_a_line_cut_off_by_a_kill_is_measured_again(request_of, counting, tmp_path) -> None:
    path = tmp_path / "j.jsonl"
    tune(request_of(), executor_of=Direct)
    path.write_bytes(path.read_bytes()[:-40])
    tune(request_of(), executor_of=counting)
    assert counting.ran == 1
    assert len(read_journal(path).entries) == 3


def test_a_kill_within_the_first_line_begins_again(tmp_path) -> None:
    path, setup = tmp_path / "j.jsonl", {"device": "dry run", "rounds": 3}
    Journal(path, setup).close()
    first = path.read_bytes()
    for end in range(len(first)):
        path.write_bytes(first[:end])
        Journal(path, setup).close()
        assert read_journal(path).setup == setup and path.read_bytes().count(b"\n") == 1
    path.write_bytes(b"a text of somebody else")
    with pytest.raises(JournalError, match="is no journal of a sweep"):
        Journal(path, setup)
    assert path.read_bytes() == b"a text of somebody else"


def test_a_whole_line_with_a_wrong_field_is_refused(request_of, tmp_path) -> None:
    """Each field of an outcome and of a fault taken away, then each of another type: the sentence has line and field."""
    path = tmp_path / "j.jsonl"
    tune(request_of(workloads=WORKLOADS[:1]), executor_of=lambda spec: Direct(faulty(spec, Fault.NAN)))
    first, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"build", "fault", "outcome"}
    for i, line in enumerate(lines):
        for name in line.keys() - {"date"} if line["kind"] == "fault" else line:
            for other in ({k: v for k, v in line.items() if k != name}, line | {name: [{}]}, line | {name: {"x": "y"}}):
                write_rows(path, first, *lines[:i], other, *lines[i + 1 :])
                if name in ("device", "state") and other.get(name) == {"x": "y"}:
                    assert read_journal(path).entries
                    continue
                with pytest.raises(JournalError) as caught:
                    read_journal(path)
                text = str(caught.value)
                assert text.startswith(f"journal {path}, line {i + 2}") and name in text, (name, other)
                assert text.endswith("; take the line out, and the sweep measures its subject again")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"repeat": "1"}, ", repeat: expected `int`, got `str`"),
        ({"rounds_us": {"b": {"v": [1.0, 0.0]}}}, ", rounds_us[...][...][1]: expected `float` > 0.0"),
        ({"faults": {"v": {"fault": "late", "detail": ""}}}, ", faults[...].fault: invalid enum value 'late'"),
        ({"error": 1}, ", error: expected `str | null`, got `int`"),
        (
            {"problem": {"op": "fp8", "n": 64, "k": 128, "m": 0}},
            ", problem: {'op': 'fp8', 'n': 64, 'k': 128, 'm': 0} is no workload ({'op': 'fp8', 'n': 64, 'k': 128, 'm': 0}: sizes must "
            "be positive whole numbers)",
        ),
    ],
)
def test_the_sentence_of_a_wrong_line(request_of, counting, tmp_path, changes, found) -> None:
    path = tmp_path / "j.jsonl"
    tune(request_of(workloads=WORKLOADS[:1]), executor_of=Direct)
    first, _, line = [json.loads(line) for line in path.read_text().splitlines()]
    write_rows(path, first, line | changes)
    with pytest.raises(JournalError) as caught:
        tune(request_of(workloads=WORKLOADS[:1]), executor_of=counting)
    assert (
        str(caught.value)
        == f"journal {path}, line 2{found}; take the line out, and the sweep measures its subject again"
    )
    assert counting.ran == 0
    write_rows(path, first)
    tune(request_of(workloads=WORKLOADS[:1]), executor_of=counting)
    assert counting.ran == 1, "as the sentence says"


def test_a_first_line_with_a_wrong_field_is_refused(tmp_path) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path, {"rounds": 3}).close()
    first = json.loads(path.read_text())
    write_rows(path, {k: v for k, v in first.items() if k != "setup"})
    with pytest.raises(JournalError) as caught:
        read_journal(path)
    assert str(caught.value) == (
        f"journal {path}, line 1: object missing required field `setup`; begin another with --journal, or delete it"
    )
    write_rows(path, first | {"schema_version": 4})
    with pytest.raises(JournalError, match="has schema version 4, this gemmill writes 3: begin another with --journal"):
        read_journal(path)


def write_rows(path, *rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_journal_of_schema_1_is_gone_on_from(request_of, counting, tmp_path) -> None:
    """Its workloads are lists: op, m, n and k."""
    path = tmp_path / "j.jsonl"
    tune(request_of(), executor_of=Direct)
    first, build, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert build["kind"] == "build" and lines[0]["problem"] == {"op": "fp8", "n": 64, "k": 128, "m": 1}
    for row in lines:
        row["problem"] = [row["problem"][name] for name in ("op", "m", "n", "k")]
    path.write_text("".join(json.dumps(row) + "\n" for row in (first | {"schema_version": 1}, *lines)))
    tune(request_of(), executor_of=counting)
    assert counting.ran == 0


def test_what_is_known_is_on_disk_before_the_next_is_asked_for(tmp_path, monkeypatch) -> None:
    """Each line is synced, whole, before the call that writes it ends."""
    path = tmp_path / "j.jsonl"
    synced = []

    def sync(descriptor: int) -> None:
        assert os.fstat(descriptor).st_ino == path.stat().st_ino
        synced.append(path.read_bytes())

    monkeypatch.setattr(os, "fsync", sync)
    with Journal(path, {"rounds": 3}) as journal:
        assert synced == [path.read_bytes()]
        journal.fault(WORKLOADS[0], "a", Finding(fault=Fault.NAN, detail="all of it"))
        assert len(synced) == 2 and synced[-1] == path.read_bytes() and synced[-1].endswith(b"\n")
        outcome = TaskOutcome(workload=WORKLOADS[0], rounds_us={}, findings={})
        journal.outcome(Entry(outcome=outcome, repeat=0, wave=0, present=None, date="2026-11-21"))
        assert len(synced) == 3 and synced[-1] == path.read_bytes() and synced[-1].count(b"\n") == 3


def test_faults_are_not_tried_again(request_of, tmp_path) -> None:
    tune(request_of(workloads=WORKLOADS[:1]), executor_of=lambda spec: Direct(faulty(spec, Fault.NAN)))
    path = tmp_path / "j.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if '"outcome"' not in line))
    result = tune(request_of(workloads=WORKLOADS[:1]), executor_of=Direct)
    (entry,) = result.record.entries.values()
    assert WRONG not in entry.outcome.rounds_us


def test_a_journal_of_another_sweep_is_refused(request_of, tmp_path) -> None:
    tune(request_of(workloads=WORKLOADS[:1]), executor_of=Direct)
    with pytest.raises(
        JournalError, match=r"is of another sweep \(rounds was 3, is 4\): name another with --journal, or begin"
    ):
        tune(request_of(options=SweepOptions(rounds=4)), executor_of=Direct)
    tune(request_of(options=SweepOptions(rounds=4), fresh=True, workloads=WORKLOADS[:1]), executor_of=Direct)
    with Journal(tmp_path / "k.jsonl", {}), pytest.raises(JournalError) as caught:
        Journal(tmp_path / "k.jsonl", {})
    assert str(caught.value) == (
        f"journal {tmp_path}/k.jsonl is being written by another sweep, process {os.getpid()}: name another with --journal"
    )
    (tmp_path / "x.jsonl").write_text("{}\n")
    with pytest.raises(JournalError, match=r"x\.jsonl is no journal of a sweep"):
        read_journal(tmp_path / "x.jsonl")


def test_a_journal_on_a_file_system_without_locks(tmp_path, monkeypatch) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(JournalError) as caught:
        Journal(tmp_path / "k.jsonl", {})
    assert str(caught.value) == (
        f"journal {tmp_path}/k.jsonl cannot be locked (No locks available): name one on a file system that has locks with --journal"
    )


def test_what_an_executor_loses_is_left_for_the_next_run(request_of, tmp_path) -> None:
    lost = []

    class Loses(Direct):
        def run(self, tasks, found):
            yield tasks[0], TaskLost("its worker is gone")
            yield from super().run(tasks[1:], found)

    class Hears(Observer):
        def lost(self, workload: Workload, reason: str) -> None:
            lost.append((workload, reason))

    tune(request_of(), Hears(), executor_of=Loses)
    assert lost == [(WORKLOADS[0], "its worker is gone")]
    assert len(read_journal(tmp_path / "j.jsonl").entries) == 2


def test_killed_in_the_middle(tmp_path) -> None:
    """SIGKILL loses the task in flight; the same command goes on."""
    shapes = tmp_path / "shapes.json"
    shapes.write_text(json.dumps([{"m": [1, 2, 3, 4, 5, 6], "n": 64, "k": 128}]))
    journal = tmp_path / "j.jsonl"
    command = [
        sys.executable,
        "-m",
        "gemmill",
        "tune",
        "--dry-run",
        "--shapes",
        shapes,
        "--journal",
        journal,
        "--rounds",
        "3",
    ]
    environment = os.environ | {"PYTHONPATH": str(SOURCES), "GEMMILL_HOME": str(tmp_path / "home")}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not journal.exists() or journal.read_text().count('"outcome"') < 2):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    known = len(read_journal(journal).entries)
    assert known >= 2
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f"{known} of 6 workloads known from the journal" in done.stderr
    assert len(read_journal(journal).entries) == 6


def test_most_candidates(request_of, tmp_path) -> None:
    tune(request_of(workloads=WORKLOADS[:1], options=SweepOptions(rounds=2, most=1, peers=False)), executor_of=Direct)
    (entry,) = read_journal(tmp_path / "j.jsonl").entries.values()
    assert len(entry.outcome.builds) == 1 and MOST > 1
