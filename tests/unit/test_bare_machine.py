"""A machine with a GPU has torch, pytest and the command, and perhaps nothing else: it times, checks and tunes there all the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LACKING = ("msgspec", "psutil", "elftools", "transformers", "distributed", "pynvml")
PRELUDE = f"""
import sys
class Lacks:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {LACKING}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Lacks())
"""
IMPORTS = """
import importlib
for name in sys.argv[1:]:
    importlib.import_module(name)
"""
TUNE = """
from gemmill.cli import main
main(["tune", "--dry-run", "--shapes", "shapes.json", "--journal", "j.jsonl", "--rounds", "2", "--no-peers", "--candidates", "2"])
"""


def run(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(ROOT / part) for part in ("generator", "benchmarks", "tests", "tools"))
    environment = os.environ | {"PYTHONPATH": path, "GEMMILL_HOME": str(folder / "home")}
    command = [sys.executable, "-c", PRELUDE + program, *arguments]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


def test_what_is_run_there_is_imported(tmp_path) -> None:
    programs = ["run", "judge", "samples", "foreign_table", "host_time", "layer_time", "offload", "inspected"]
    children = [
        "gemmill.tuner.bench",
        "gemmill.fuzz.child",
        "gemmill.cli.verify",
        "gemmill.cli.fuzz",
        "gemmill.cli.explain",
    ]
    done = run(tmp_path, IMPORTS, *programs, *children)
    assert done.returncode == 0, done.stderr


def test_a_sweep_is_begun_there_and_gone_on_with_elsewhere(tmp_path) -> None:
    (tmp_path / "shapes.json").write_text('[{"m": [1, 2], "n": 64, "k": 128}]')
    done = run(tmp_path, TUNE)
    assert done.returncode == 0 and (tmp_path / "j.jsonl").read_text().count('"outcome"') == 2, done.stderr
    again = run(tmp_path, TUNE)
    assert again.returncode == 3
    assert again.stderr.splitlines()[-1] == (
        "gemmill: this needs the Python package msgspec, which is not installed: `pip install msgspec`"
    )


@pytest.mark.parametrize("name", LACKING)
def test_they_are_lacking(tmp_path, name: str) -> None:
    done = run(tmp_path, f"import {name}")
    assert f"ModuleNotFoundError: No module named '{name}'" in done.stderr
