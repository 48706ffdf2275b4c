"""Recording the shapes that no table has."""

import json
from pathlib import Path

import pytest

from gemmill.runtime import misses, ops
from gemmill.runtime.misses import Recorder, op_of
from gemmill.runtime.problem import Need
from gemmill.runtime.select import Trust
from gemmill.tune.problems import Op, Problem
from gemmill.tune.shapes import read_shapes


class Noted:
    """A build that has noted calls."""

    def __init__(self, *calls) -> None:
        self.calls = list(calls)

    def record_misses(self, most: int) -> None:
        self.most = most

    def take_misses(self, most: int):
        taken, self.calls = self.calls, []
        return taken


@pytest.fixture
def recorder(tmp_path):
    found = Recorder(tmp_path / "new" / "misses.jsonl")
    yield found
    found.close()


def test_misses_become_shapes(recorder, problem_call, tmp_path: Path) -> None:
    calls = [
        (problem_call(m=3), Trust.NEAREST),
        (problem_call(m=3, out="float16"), Trust.NEAREST),
        (problem_call(m=5, operand="int8", need=Need.AZP_ROW), Trust.MODEL),
    ]
    build = Noted(*calls)
    recorder.add(build)
    assert build.most == misses.MOST_NOTED
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
        Problem(op=Op.FP8, m=3, n=4096, k=4096),
        Problem(op=Op.INT8_AZP, m=5, n=4096, k=4096),
    ]


def test_a_miss_is_written_once(recorder, problem_call, tmp_path: Path) -> None:
    """However many others came between."""
    build = Noted()
    recorder.add(build)
    for m in (3, 4, 3, 4, 5, 3):
        build.calls = [(problem_call(m=m), Trust.MODEL)]
        recorder.flush()
    rows = (tmp_path / "new" / "misses.jsonl").read_text().splitlines()
    assert [json.loads(row)["m"] for row in rows] == [3, 4, 5]


def test_the_file_is_bounded(recorder, problem_call, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(misses, "MOST_BYTES", 10)
    build = Noted((problem_call(m=3), Trust.MODEL))
    recorder.add(build)
    recorder.flush()
    build.calls = [(problem_call(m=4), Trust.MODEL)]
    recorder.flush()
    assert len((tmp_path / "new" / "misses.jsonl").read_text().splitlines()) == 1


def test_a_file_that_cannot_be_written_stops_nothing(problem_call) -> None:
    recorder = Recorder(Path("/proc/none/misses.jsonl"))
    recorder.add(Noted((problem_call(), Trust.MODEL)))
    with pytest.warns(RuntimeWarning, match="misses cannot be recorded in /proc/none"):
        recorder.flush()
    recorder.close()


def test_classes_are_those_of_tables(problem_call) -> None:
    for op in Op:
        assert op_of(Problem(op=op, m=1, n=16, k=16).call) == op
    assert op_of(problem_call(operand="float16", out="float16")) == "bf16", "their schedules are the same"


def test_recording_begins_with_the_setting(monkeypatch, tmp_path, problem_call) -> None:
    monkeypatch.setattr(ops, "_recorder", None)
    monkeypatch.delenv("GEMMILL_RECORD_MISSES", raising=False)
    ops._record_misses_of(Noted())
    assert ops._recorder is None
    monkeypatch.setenv("GEMMILL_RECORD_MISSES", str(tmp_path / "m.jsonl"))
    ops._record_misses_of(Noted((problem_call(), Trust.MODEL)))
    ops._recorder.close()
    assert (tmp_path / "m.jsonl").exists()
