"""tools/dsl_code.py: a sample of kernels, and whose code differs. The CuTe DSL does not run here."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("dsl_code", Path(__file__).parents[2] / "tools" / "dsl_code.py")
assert _SPEC is not None and _SPEC.loader is not None
program = importlib.util.module_from_spec(_SPEC)
sys.modules["dsl_code"] = program
_SPEC.loader.exec_module(program)

NAME = "sm90a_groupedmm_s8_f16_channel_t128x128x128_c1x2x1_pingpong_exact_ab_sauto"


def test_facts_are_those_that_choose_code() -> None:
    facts = dict(program.facts_of(NAME))
    assert facts["Plan.pingpong"] == "True" and facts["Plan.swap_ab"] == "False" and facts["Plan.cluster_y"] == "2"
    assert "Plan.stages" not in facts, "a number alone chooses no code"


def test_a_sample_has_every_pair() -> None:
    kernels = {
        "a": {("x", "1"), ("y", "1")},
        "same": {("x", "1"), ("y", "1")},
        "b": {("x", "2"), ("y", "1"), ("z", "1")},
        "c": {("x", "1"), ("y", "2")},
    }
    assert program.sample(kernels, 9) == ["b", "a", "c"]
    assert program.sample(kernels, 1) == ["b"]


def test_kernels_that_differ_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    code = {"k": {"machine code": "1", "launch": "2"}, "l": {"machine code": "3", "launch": "4"}}
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps(code))
    monkeypatch.setattr(program, "code_of", lambda name: code[name])
    command = ["--out", str(after), "--against", str(before)]
    assert program.main(command) == 0 and json.loads(after.read_text()) == code
    assert capsys.readouterr().out == "2 kernels, 0 differ\n"
    code["l"] = {"machine code": "3", "launch": "5"}
    assert program.main(command) == 1
    assert capsys.readouterr().out == "l: another launch\n2 kernels, 1 differ\n"
