"""Options and fixtures of the whole test suite, and how its tests are dealt to processes (`make test`)."""

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest

from closing import HERE, LINES

_TOGETHER = ("gpu", "binding")
"""Folders, of any family, whose tests share an expensive fixture of the process: the memory of a GPU, an extension."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden folders' reference texts instead of comparing"
    )
    group = parser.getgroup("gpu", "GPU tests, which are made from the manifest of a build")
    group.addoption(
        "--level",
        choices=("L0", "L1", "L2"),
        default="L0",
        help="one shape for each variant, ragged ones, many; of tests that draw, everywhere, 5 or 25 times the calls",
    )
    group.addoption("--build", help="build id or path; the current one by default")
    group.addoption("--match", default="", help="only variants whose name contains this")
    group.addoption("--dry-run", action="store_true", help="on a CPU, with the reference in the place of the kernels")


if processes := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):
    # Before torch is imported, which the next conftest.py may do: threads of several processes on one core wait for one another.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // processes)))


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LINES] = []


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Imported and collected objects stay to the end: to scan them for garbage takes a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of a file, or of the folders of a name in `_TOGETHER`, are one process's, so that module fixtures are made once.

    They are dealt in pytest's order, in which those that compile come first. Another way to deal them is taken where
    `--dist` names one: `--dist worksteal` on a GPU with room for many processes.
    """
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Whole(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = (config.rootpath / nodeid.split("::")[0]).relative_to(HERE)
            return next((folder for folder in _TOGETHER if folder in path.parent.parts), str(path))

    config.option.loadscopereorder = False
    return Whole(config, log)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["lines"] = session.config.stash[LINES]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    lines = node.config.stash[LINES]
    lines += [line for line in getattr(node, "workeroutput", {}).get("lines", ()) if line not in lines]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash[LINES]:
        terminalreporter.write_line(line)


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether reference texts are to be rewritten."""
    return request.config.getoption("--update-golden")


@pytest.fixture(scope="session")
def draws(pytestconfig: pytest.Config) -> int:
    """How many times as many random calls a test draws as L0 does."""
    return {"L0": 1, "L1": 5, "L2": 25}[pytestconfig.getoption("--level")]


@pytest.fixture
def without_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured rows of GEMMs serve as far as they reach, whatever the model expects."""
    import math
    from dataclasses import replace

    from gemmill.registry import REGISTRY

    for known in (REGISTRY.choices, REGISTRY.tunings):
        tuning = known["scaled_mm"]
        monkeypatch.setitem(known, "scaled_mm", replace(tuning, reach=replace(tuning.reach, margin=math.inf)))
