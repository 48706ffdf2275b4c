"""Recording the shapes that no table has."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from gemmill.families.scaled_mm.classes import Need
from gemmill.families.scaled_mm.tuning import TUNING
from gemmill.runtime import misses, ops
from gemmill.runtime.choosing import Trust
from gemmill.runtime.misses import MissFile
from gemmill.runtime.noted import MOST_NOTED, Notes
from gemmill.runtime.select import Noted as Choice
from gemmill.tuner.shapes import read_misses, read_shapes
from gemms import MeasuredOp, gemm


class Noted:
    """A build with noted calls."""

    def __init__(self, *calls) -> None:
        self.calls = list(calls)
        self.most = None

    def note_choices(self, most: int, least_trust: Trust = Trust.NEAREST) -> None:
        self.most, self.least_trust = most, least_trust

    def take_noted(self, most: int):
        taken, self.calls = self.calls, []
        return [Choice(call=call, variant="v", trust=trust) for call, trust in taken]


@pytest.fixture
def file(tmp_path) -> MissFile:
    return MissFile(tmp_path / "new" / "misses.jsonl")


@pytest.fixture
def recorder(file):
    found = Notes(file)
    yield found
    found.close()


def test_misses_become_shapes(recorder, shaped_call, tmp_path: Path) -> None:
    calls = [
        (shaped_call(m=3), Trust.NEAREST),
        (shaped_call(m=3, out="float16"), Trust.NEAREST),
        (shaped_call(m=5, operand="int8", need=Need.AZP_ROW), Trust.MODEL),
    ]
    build = Noted(*calls)
    recorder.add(build)
    assert build.most == MOST_NOTED
    recorder.flush()
    build.calls = calls[:1]
    recorder.flush()
    path = tmp_path / "new" / "misses.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["op"], row["m"], row["trust"]) for row in rows] == [
        ("fp8", 3, "nearest"),
        ("fp8", 3, "nearest"),
        ("int8_azp", 5, "model"),
    ]
    assert read_shapes(path, ()) == [
        gemm(op=MeasuredOp.FP8, m=3, n=4096, k=4096),
        gemm(op=MeasuredOp.INT8_AZP, m=5, n=4096, k=4096),
    ]


def test_a_miss_is_written_once(recorder, shaped_call, tmp_path: Path) -> None:
    """However many others came between."""
    build = Noted()
    recorder.add(build)
    for m in (3, 4, 3, 4, 5, 3):
        build.calls = [(shaped_call(m=m), Trust.MODEL)]
        recorder.flush()
    rows = (tmp_path / "new" / "misses.jsonl").read_text().splitlines()
    assert [json.loads(row)["m"] for row in rows] == [3, 4, 5]


def test_the_file_is_bounded(recorder, file, shaped_call, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(misses, "MOST_BYTES", 10)
    build = Noted((shaped_call(m=3), Trust.MODEL))
    recorder.add(build)
    recorder.flush()
    build.calls = [(shaped_call(m=4), Trust.MODEL)]
    recorder.flush()
    assert len((tmp_path / "new" / "misses.jsonl").read_text().splitlines()) == 1


def test_memory_is_bounded(recorder, file, shaped_call, tmp_path, monkeypatch) -> None:
    """Nothing is noted or remembered once the file is full, or this process has written its share to files that went away."""
    path = tmp_path / "new" / "misses.jsonl"
    monkeypatch.setattr(misses, "MOST_BYTES", 10)
    build = Noted((shaped_call(m=3), Trust.MODEL))
    recorder.add(build)
    recorder.flush()
    assert build.most == MOST_NOTED
    build.calls = [(shaped_call(m=4), Trust.MODEL)]
    recorder.flush()
    later = Noted((shaped_call(m=5), Trust.MODEL))
    recorder.add(later)
    recorder.flush()
    assert (build.most, later.most, file._written, recorder._builds) == (0, None, set(), [])
    assert len(path.read_text().splitlines()) == 1

    monkeypatch.setattr(misses, "MOST_BYTES", 1000)
    full = MissFile(path)
    other = Notes(full)
    other.add(build)
    for m in range(100):
        path.unlink(missing_ok=True)
        build.calls = [(shaped_call(m=6 + m), Trust.MODEL)]
        other.flush()
    assert (build.most, full._written) == (0, set())
    other.close()


def test_a_disk_that_stays_full_costs_no_memory(shaped_call, monkeypatch) -> None:
    monkeypatch.setattr(misses, "MOST_BYTES", 1000)
    file = MissFile(Path("/proc/none/misses.jsonl"))
    recorder, build = Notes(file), Noted()
    recorder.add(build)
    with pytest.warns(RuntimeWarning):
        for m in range(1, 100):
            build.calls = [(shaped_call(m=m), Trust.MODEL)]
            recorder.flush()
    assert (build.most, file._written) == (0, set())
    recorder.close()


def test_a_call_of_nothing_is_not_recorded(recorder, shaped_call, tmp_path) -> None:
    recorder.add(Noted(*((shaped_call(**{size: 0}), Trust.MODEL) for size in "mnk"), (shaped_call(), Trust.MODEL)))
    recorder.flush()
    assert len(read_misses(tmp_path / "new" / "misses.jsonl", ())[0]) == 1


def test_a_cut_line_takes_no_other_with_it(recorder, shaped_call, tmp_path) -> None:
    path = tmp_path / "new" / "misses.jsonl"
    path.parent.mkdir()
    path.write_text('{"op": "fp8", "m": 3, "n": 40')
    recorder.add(Noted((shaped_call(m=4), Trust.MODEL)))
    recorder.flush()
    found, unusable = read_misses(path, ())
    assert [workload.step for workload in found] == [4]
    assert len(unusable) == 1 and unusable[0].startswith(f"{path}, line 1 is not JSON: ")


def child_of(work) -> int:
    """The exit code of a fork that does the work; one that hangs is killed, and its code is that of the kill."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_fork_while_the_recorder_writes_hangs_nobody(recorder, shaped_call, tmp_path) -> None:
    """The child has a lock and a thread of its own, and records."""
    build = Noted()
    recorder.add(build)

    def in_child() -> None:
        build.calls = [(shaped_call(m=7), Trust.MODEL)]
        recorder.flush()
        assert [thread.name for thread in threading.enumerate()].count("gemmill-notes") == 1
        recorder.add(Noted())

    with recorder._lock:
        assert child_of(in_child) == 0
    assert [workload.step for workload in read_misses(tmp_path / "new" / "misses.jsonl", ())[0]] == [7]


def test_a_file_that_cannot_be_written_stops_nothing(shaped_call) -> None:
    recorder = Notes(MissFile(Path("/proc/none/misses.jsonl")))
    recorder.add(Noted((shaped_call(), Trust.MODEL)))
    with pytest.warns(RuntimeWarning, match="misses cannot be recorded in /proc/none"):
        recorder.flush()
    recorder.close()


def test_classes_are_those_of_tables(shaped_call) -> None:
    for op in MeasuredOp:
        assert TUNING.measured_as(gemm(op=op, m=1, n=16, k=16).call) == op
    assert TUNING.measured_as(shaped_call(operand="float16", out="float16")) == "bf16", "their schedules are the same"


def test_recording_begins_with_the_setting(monkeypatch, tmp_path, shaped_call) -> None:
    monkeypatch.setattr(ops, "_notes", None)
    monkeypatch.delenv("GEMMILL_RECORD_MISSES", raising=False)
    ops._listen_to(Noted())
    assert ops._notes is None
    monkeypatch.setenv("GEMMILL_RECORD_MISSES", str(tmp_path / "m.jsonl"))
    ops._listen_to(Noted((shaped_call(), Trust.MODEL)))
    ops._notes.close()
    assert (tmp_path / "m.jsonl").exists()
