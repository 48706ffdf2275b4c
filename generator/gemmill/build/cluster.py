"""Compilation on a Dask cluster, in place of ninja on this machine.

A unit's request names files below the home and programs of the toolchain. Workers must see both at the same paths, on a
file system that they share with this machine.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from gemmill import settings
from gemmill.build.scheduler import Scheduler, gathered
from gemmill.ownership import own_files

_SOURCE_ROOT = Path(__file__).resolve().parents[2]


def run_on_cluster(
    scheduler: Scheduler, folder: Path, requests: Mapping[str, str], ended: Callable[[], None]
) -> dict[str, str]:
    """Run each request file, with the module that takes it, on some worker. It calls `ended` as each ends.

    Returns the printed text of each request that failed. Raises SchedulerError where there is no cluster.
    """
    client = scheduler.connect(
        "start one with `dask scheduler`, and workers with `dask worker ADDRESS --nthreads 1`, each with memory for a compiler"
    )
    with client:
        submitted = {
            client.submit(compile_here, str(folder), module, request, pure=False): request
            for request, module in requests.items()
        }
        failures = {}
        for request, text, error in gathered(client, submitted):
            if error is not None or text:
                failures[request] = text or f"{type(error).__name__}: {error}"
            ended()
    return failures


def compile_here(folder: str, module: str, request: str) -> str:
    """Compile one unit on this worker. Returns the compiler's output if that failed, else an empty text."""
    if not (Path(folder) / request).is_file():
        return f"{folder} is not to be seen on a worker: the home (GEMMILL_HOME) must lie on a file system that workers share"
    with own_files():
        done = subprocess.run(
            [sys.executable, "-m", module, request],
            cwd=folder,
            env=settings.child_environment(python_path=_SOURCE_ROOT),
            capture_output=True,
            text=True,
            check=False,
        )
    return (done.stderr or done.stdout or f"exit code {done.returncode}").strip() if done.returncode else ""
