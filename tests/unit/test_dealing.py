"""The suite in several processes: tests that share a fixture stay together, and each message appears once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
NOTE = """
import os
import pytest

@pytest.mark.parametrize("number", range(4))
def test_it(number, request):
    path = request.path.relative_to(request.config.rootpath).as_posix()
    with (request.config.rootpath / "log").open("a") as log:
        log.write(f"{path} {os.environ['PYTEST_XDIST_WORKER']} {os.environ['OMP_NUM_THREADS']}\\n")
"""
SAY = """
from closing import LINES

def pytest_collection_modifyitems(config):
    config.stash[LINES].append("2 tests left out: no machine")
"""


def test_files_and_folders_are_dealt_whole_and_lines_said_once(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    for path in ("gpu/test_a.py", "families/toy/gpu/test_b.py", "unit/test_c.py", "unit/test_d.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(NOTE)
    (tmp_path / "gpu" / "conftest.py").write_text(SAY)
    for name in ("conftest.py", "closing.py"):
        shutil.copy(TESTS / name, tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\npythonpath = .\n")
    command = [sys.executable, "-m", "pytest", "-n", "2"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "OMP"))}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "16 passed" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("2 tests left out: no machine\n") == 1
    rows = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    processes = {path: {process for found, process, _ in rows if found == path} for path, _, _ in rows}
    assert {len(found) for found in processes.values()} == {1}
    assert processes["gpu/test_a.py"] == processes["families/toy/gpu/test_b.py"]
    assert {process for _, process, _ in rows} == {"gw0", "gw1"}
    assert {int(threads) for *_, threads in rows} == {max(1, len(os.sched_getaffinity(0)) // 2)}
