"""tools/inspected.py: kernels compiled one by one, and their records. No compiler runs here."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gemmill.build.toolchain import find_toolchain

_SPEC = importlib.util.spec_from_file_location("inspected", Path(__file__).parents[2] / "tools" / "inspected.py")
assert _SPEC is not None and _SPEC.loader is not None
program = importlib.util.module_from_spec(_SPEC)
sys.modules["inspected"] = program
_SPEC.loader.exec_module(program)

NAMES = ("sm120f_blockscaled_nvfp4xnvfp4_*_cooperative",)
LISTING = """
 Function gemmill_x_kernel:
  REG:168 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:900 TEXTURE:0 SURFACE:0 SAMPLER:0
	Function : gemmill_x_kernel
        /*0000*/                   OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X R1, R2, R3 ;   /* 0x0000000102037df2 */
"""


@pytest.fixture(autouse=True)
def _toolchain():
    try:
        find_toolchain()
    except program.BuildError as error:
        pytest.skip(str(error))


def run(out, *more):
    return program.main(["--arch", "sm120f", "--filter", *NAMES, "--out", str(out), *more])


def test_each_kernel_is_compiled_once(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(program, "compiled", lambda kernel, *rest: asked.append(kernel.source.name) or LISTING)
    out = tmp_path / "x.json"
    assert run(out) == 0
    rows = json.loads(out.read_text())["kernels"]
    assert [row["name"] for row in rows] == sorted(asked) and len(rows) == 3
    assert all((row["registers"], row["spill_bytes"], row["sass"]) == (168, 0, {"OMMA": 1}) for row in rows)
    assert run(out) == 0 and len(asked) == 3, "what the file has is not compiled again"
    monkeypatch.setattr(program, "digest", lambda *made_from: "another")
    assert run(out) == 0 and len(asked) == 6, "other headers make other kernels"
    assert "3 of 3 kernels inspected, 0 bad" in capsys.readouterr().out


def test_the_file_names_commit_and_date(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "compiled", lambda *given: LISTING)
    monkeypatch.setattr(program, "commit_of", lambda folder: "abc")
    monkeypatch.setattr(program, "date", lambda: "2026-01-01T00:00:00+00:00")
    out = tmp_path / "x.json"
    assert run(out) == 0
    first = json.loads(out.read_text())
    assert (first["commit"], first["date"]) == ("abc", "2026-01-01T00:00:00+00:00")
    assert first["cutlass"].count(".") == 2 and first["filter"] == [*NAMES]
    monkeypatch.setattr(program, "compiled", lambda *given: pytest.fail("compiled again"))
    monkeypatch.setattr(program, "date", lambda: "2026-01-02T00:00:00+00:00")
    assert run(out, "--commit", "def") == 0
    again = json.loads(out.read_text())
    assert (again["commit"], again["date"]) == ("def", "2026-01-02T00:00:00+00:00"), "a check is noted too"
    assert again["kernels"] == first["kernels"], "what was compiled keeps its own date"


def test_spills_and_failures_are_bad_and_tried_again(tmp_path, monkeypatch, capsys):
    out = tmp_path / "x.json"
    spills = LISTING + "        /*0010*/                   STL.64 [R1], R2 ;   /* 0x0000000102037df3 */\n"
    monkeypatch.setattr(program, "compiled", lambda *given: spills)
    assert run(out) == 1 and json.loads(out.read_text())["kernels"][0]["spill_bytes"] == 8

    def fail(*given):
        raise subprocess.CalledProcessError(1, "nvcc", stderr="x.cu(3): error: no such tile\n")

    out.unlink()
    monkeypatch.setattr(program, "compiled", fail)
    assert run(out) == 1 and "error: no such tile" in capsys.readouterr().out
    monkeypatch.setattr(program, "compiled", lambda *given: LISTING)
    assert run(out) == 0, "a failure is tried again"


def test_nothing_begins_when_time_is_over(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "compiled", lambda *given: LISTING)
    assert run(tmp_path / "x.json", "--limit-s", "-1") == 0
    assert "0 of 3 kernels inspected, 0 bad" in capsys.readouterr().out and not (tmp_path / "x.json").exists()
