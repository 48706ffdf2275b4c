"""Scripts in processes of their own, forked from one after its import of torch: that import takes longer than most scripts."""

import atexit
import multiprocessing
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["torch"])


@dataclass(frozen=True, kw_only=True)
class Done:
    """The outcome of a process."""

    returncode: int
    stdout: str
    stderr: str


def run_script(code: str, *arguments: str, environment: Mapping[str, str], folder: Path | None = None) -> Done:
    """Run code as `python -c` would in an interpreter after the import of torch and nothing of gemmill."""
    with TemporaryDirectory() as kept:
        written = [Path(kept, name) for name in ("stdout", "stderr")]
        process = _FORKS.Process(target=_run, args=(code, arguments, dict(environment), folder or Path.cwd(), written))
        process.start()
        process.join()
        assert process.exitcode is not None
        stdout, stderr = (path.read_text() if path.exists() else "" for path in written)
    return Done(returncode=process.exitcode, stdout=stdout, stderr=stderr)


def _run(code: str, arguments: tuple[str, ...], environment: dict[str, str], folder: Path, written: list[Path]) -> None:
    for descriptor, path in zip((1, 2), written, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    of_ours = {*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(Path(__file__).parent)}
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    first = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = ["", *first, *(path for path in sys.path if path not in of_ours)]
    sys.argv[:] = ["-c", *arguments]
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    atexit._run_exitfuncs()  # a process of multiprocessing leaves them out
