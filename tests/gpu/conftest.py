"""GPU tests are made from the loaded build's manifest: `pytest tests/gpu --level L1 [--build ID] [--match TEXT]`.

L0 is one shape for each variant, L1 the shapes where kernels go wrong, L2 many. `--dry-run` runs the tests' own logic
on a CPU, with the reference in the place of the kernels. Without a GPU all are left out, and their number is told.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import gemmill
from closing import LINES
from gemmill.manifest import KernelEntry, ManifestError
from gpu.shapes import shapes_for
from gpu.stand_in import StandIn
from gpu.subject import Gemmill, Subject

_subject: list[Subject] = []
_worst: dict[str, tuple[float, str]] = {}


def _no_gpu(config: pytest.Config) -> bool:
    return not torch.cuda.is_available() and not config.getoption("--dry-run")


def _load(config: pytest.Config) -> Subject | None:
    """The subject of the tests, or None without a build."""
    if not _subject:
        if config.getoption("--dry-run"):
            _subject.append(StandIn())
        else:
            try:
                gemmill.load(config.getoption("--build"))
            except (OSError, RuntimeError, ManifestError) as error:
                if torch.cuda.is_available():
                    raise pytest.UsageError(f"no build to test: {error}") from None
                return None
            _subject.append(Gemmill())
    return _subject[0]


def _build_loads(config: pytest.Config) -> bool:
    try:
        gemmill.load(config.getoption("--build"))
    except (OSError, RuntimeError, ManifestError):
        return False
    return True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`entry` becomes every variant, `entry` and `shape` every variant at every shape of the level."""
    if "entry" not in metafunc.fixturenames:
        return
    subject = _load(metafunc.config)
    match = metafunc.config.getoption("--match")
    entries = [] if subject is None else [entry for entry in subject.entries if match in entry.name]
    if "shape" not in metafunc.fixturenames:
        metafunc.parametrize("entry", entries, ids=lambda entry: entry.name)
        return
    level = metafunc.config.getoption("--level")
    cases = [(entry, shape) for entry in entries for shape in shapes_for(entry, level)]
    ids = [f"{entry.name}-{'x'.join(map(str, shape))}" for entry, shape in cases]
    metafunc.parametrize(("entry", "shape"), cases, ids=ids)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    for item in here:
        item.add_marker(pytest.mark.gpu)
    if _no_gpu(config):
        for item in here:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        config.stash[LINES].append(f"{len(here)} GPU tests left out: this machine has no CUDA device")
    elif config.getoption("--dry-run"):
        for item in here:
            if item.get_closest_marker("needs_cuda"):
                item.add_marker(pytest.mark.skip(reason="a dry run has no CUDA runtime"))
            elif item.get_closest_marker("needs_build") and not _build_loads(config):
                item.add_marker(pytest.mark.skip(reason="there is no build here"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.stash[LINES] += [
        f"largest error of {kind} accumulation: {fraction:.3f} of its bound beyond rounding, {where}"
        for kind, (fraction, where) in sorted(_worst.items())
    ]


@pytest.fixture(scope="session")
def subject(pytestconfig: pytest.Config) -> Subject:
    found = _load(pytestconfig)
    assert found is not None, "these tests are left out where there is no build"
    return found


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> torch.device:
    return torch.device("cpu" if pytestconfig.getoption("--dry-run") else "cuda")


@pytest.fixture
def note_error(request: pytest.FixtureRequest) -> Iterator:
    """Keeps the largest error of each operand type and kind of accumulation, for the summary."""

    def note(entry: KernelEntry, fraction: float) -> None:
        key = f"{entry.predicate.a_dtype} with {entry.config.schedule.accumulation}"
        if fraction > _worst.get(key, (0.0, ""))[0]:
            _worst[key] = (fraction, request.node.name)

    return note
