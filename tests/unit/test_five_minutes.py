"""Steps of tools/five_minutes.py by its switches; tests/compile/binding/test_five_minutes.py takes them."""

import importlib.util
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "tools" / "five_minutes.py"


@pytest.mark.parametrize(
    ("switches", "steps"),
    [
        ([], "install layer doctor plugins"),
        (["--model"], "install layer model convert generates"),
    ],
)
def test_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, switches: list[str], steps: str) -> None:
    spec = importlib.util.spec_from_file_location("five_minutes", PROGRAM)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    taken = []
    monkeypatch.setattr(program, "_step", lambda name, *_, **__: taken.append(name) or 0.0)
    monkeypatch.setattr(program, "_made", lambda folder: folder / "python")
    (tmp_path / "a.whl").touch()
    monkeypatch.setattr(sys, "argv", ["five_minutes.py", str(tmp_path / "a.whl"), *switches])
    program.main()
    assert taken == steps.split()
