"""The program that times the command's start, and that every program of benchmarks can be imported."""

import importlib
import json
from pathlib import Path

import pytest

import cli_time as program

PROGRAMS = sorted(path.stem for path in Path(program.__file__).parent.glob("*.py"))


def test_the_record_has_every_call(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(program, "seconds", lambda words: made.append(words) or 0.1 * len(made))
    assert program.main(["--rounds", "2", "--commit", "abc", "--out-dir", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "cli-time.json").read_text())
    assert record["rounds_s"]["python"] == [0.7, 1.3], "the first round is not kept"
    assert list(record["median_s"]) == list(program.CALLS) and len(made) == 18


def test_a_call_that_fails_is_no_time():
    with pytest.raises(program.subprocess.CalledProcessError):
        program.seconds(["-c", "raise SystemExit(3)"])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_can_be_imported(name):
    assert callable(importlib.import_module(name).main)
