"""Several builds at once, and killed builds."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from gemmill.build.driver import build
from gemmill.build.options import BuildOptions
from gemmill.locations import templates_dir
from gemmill.manifest import read_manifest
from gemmill.manifest.reading import check_extension
from gemmill.space.names import to_name
from gemmill.space.selections import Selection
from gemmill.writing import is_left, work_folder

from .conftest import FakeToolkit

_SOURCE_ROOT = templates_dir().parent / "generator"
_PROGRAM = """
import json, sys
from pathlib import Path
from gemmill.build.driver import build
from gemmill.build.options import BuildOptions
from gemmill.space.names import parse_name
from gemmill.space.selections import Selection
from gemmill.vocab import Arch
home, kernels, *names = sys.argv[1:]
configs = tuple(parse_name(name) for name in names)
result = build(Selection(name="test", arch=Arch.SM90A, configs=configs, rejections=()), BuildOptions(home=Path(home), jobs=2, kernels=Path(kernels)))
print(json.dumps([str(result.folder), len(result.manifest.entries)]))
"""


def _start(options: BuildOptions, selection: Selection) -> subprocess.Popen[str]:
    # Named as gemmill's own command is: `import gemmill` then leaves torch alone.
    program = options.kernels_folder.parent / "program" / "gemmill"
    if not program.is_file():  # once: a new process may be reading it
        program.parent.mkdir()
        program.write_text(_PROGRAM)
    names = [to_name(config) for config in selection.configs]
    return subprocess.Popen(
        [sys.executable, str(program), str(options.home), str(options.kernels), *names],
        env={**os.environ, "PYTHONPATH": str(_SOURCE_ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background job ignores interrupts, and its children would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_builds_of_the_same_at_once(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Callable[..., Selection]
) -> None:
    toolkit.set("slow", "0.5")
    selection = make_selection(64, 128, 192)
    processes = [_start(options, selection) for _ in range(3)]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert len({json.loads(out)[0] for out, _ in outputs}) == 1
    folder = Path(json.loads(outputs[0][0])[0])
    check_extension(read_manifest(folder / "manifest.json"), folder)
    assert [path.name for path in (options.home_dir / "builds").iterdir()] == [folder.name]
    assert not [*options.home_dir.glob("work/*"), *options.home_dir.glob("cache/*/.*")]
    assert build(selection, options).reused


def test_builds_that_overlap_at_once(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Callable[..., Selection]
) -> None:
    toolkit.set("slow", "0.5")
    selections = [make_selection(64, 128), make_selection(128, 192), make_selection(64, 128, 192)]
    processes = [_start(options, selection) for selection in selections]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert [json.loads(out)[1] for out, _ in outputs] == [2, 2, 3], outputs
    toolkit.unset("slow")
    assert all(build(selection, options).reused for selection in selections)


def _compilers(toolkit: FakeToolkit, process: subprocess.Popen[str], count: int) -> list[int]:
    """The started compilers, once there are so many."""
    log = toolkit.home / "processes.log"
    while not log.is_file() or len(log.read_text().split()) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return [int(number) for number in log.read_text().split()]


def _wait_until_gone(compilers: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(map(psutil.pid_exists, compilers)):
        assert time.monotonic() < deadline, "a compiler outlives the build"
        time.sleep(0.02)


@pytest.mark.parametrize("kill", [os.kill, os.killpg])
def test_killed_build_leaves_the_last_good_one_and_no_compiler(
    toolkit: FakeToolkit,
    options: BuildOptions,
    make_selection: Callable[..., Selection],
    kill: Callable[[int, int], None],
) -> None:
    """Killed by itself, and with ninja, which is in its group."""
    good = build(make_selection(64), options)
    compiled = len((toolkit.home / "processes.log").read_text().split())
    toolkit.set("slow", "600")
    process = _start(options, make_selection(64, 128))
    compilers = _compilers(toolkit, process, compiled + 1)
    own = work_folder(options.home_dir)
    elsewhere = own.with_name("0123456789ab.999999999.1.0")  # of a process that this machine has not
    own.mkdir()
    elsewhere.mkdir()
    (left,) = (folder for folder in options.home_dir.glob("work/*") if folder not in (own, elsewhere))
    kill(process.pid, signal.SIGKILL)
    process.communicate()
    _wait_until_gone(compilers)
    toolkit.unset("slow")
    assert [path.name for path in (options.home_dir / "builds").iterdir()] == [good.folder.name]
    check_extension(read_manifest(good.folder / "manifest.json"), good.folder)

    assert build(make_selection(64), options).reused
    assert not left.exists() and own.exists() and elsewhere.exists(), "those may be of living processes"
    assert len(build(make_selection(64, 128), options).manifest.entries) == 2
    os.utime(elsewhere, (time.time() - 2 * 24 * 3600,) * 2)
    build(make_selection(192), replace(options, jobs=1))
    assert own.exists() and not elsewhere.exists()


def test_a_work_folder_is_left_by_a_process_that_has_ended_and_by_no_other(tmp_path: Path) -> None:
    own = work_folder(tmp_path)
    machine, process, start, _ = own.name.split(".")
    assert not is_left(own)
    assert is_left(own.with_name(f"{machine}.{process}.{int(start) + 1}.0")), "the number was given to another since"
    assert is_left(own.with_name(f"{machine}.999999999.{start}.0"))
    assert not is_left(own.with_name(f"0123456789ab.999999999.{start}.0")), "another machine's process"
    assert not is_left(own.with_name(f".0123.{start}")), "no work folder"
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it is listed until its parent asks
        assert is_left(own.with_name(f"{machine}.{ended.pid}.{_start_of_zombie(ended.pid)}.0"))


def _start_of_zombie(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]


def test_interrupted_build_stops_its_compilers(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Callable[..., Selection]
) -> None:
    toolkit.set("slow", "600")
    process = _start(options, make_selection(64, 128))
    compilers = _compilers(toolkit, process, 2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert "KeyboardInterrupt" in errors
    _wait_until_gone(compilers)
    assert not list(options.home_dir.glob("work/*")) and not list(options.home_dir.glob("builds/*"))
