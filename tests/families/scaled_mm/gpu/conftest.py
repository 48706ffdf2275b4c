"""Tests of GEMMs on a GPU (tests/gpu/plugin.py): every variant of the loaded build, at every shape of the level."""

from collections.abc import Iterator

import pytest
import torch

import gemmill
from closing import LINES
from families.scaled_mm.gpu.shapes import shapes_for
from families.scaled_mm.gpu.stand_in import StandIn
from families.scaled_mm.gpu.subject import Gemmill, Subject
from gemmill.families.scaled_mm.accepts import accepted
from gemmill.manifest import KernelEntry, ManifestError

_subject: list[Subject] = []
_worst: dict[str, tuple[float, str]] = {}


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


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("gpu.plugin")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`entry` becomes every variant, `entry` and `shape` every variant at every shape of the level."""
    if "entry" not in metafunc.fixturenames:
        return
    subject = _load(metafunc.config)
    match = metafunc.config.getoption("--match")
    entries = [] if subject is None else [entry for entry in subject.entries if match in entry.name]
    # Those of epilogues have ops of their own, and cases by which `gemmill verify` checks them.
    entries = [entry for entry in entries if not entry.epilogue]
    if "shape" not in metafunc.fixturenames:
        metafunc.parametrize("entry", entries, ids=lambda entry: entry.name)
        return
    level = metafunc.config.getoption("--level")
    cases = [(entry, shape) for entry in entries for shape in shapes_for(entry, level)]
    ids = [f"{entry.name}-{'x'.join(map(str, shape))}" for entry, shape in cases]
    metafunc.parametrize(("entry", "shape"), cases, ids=ids)


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


@pytest.fixture
def note_error(request: pytest.FixtureRequest) -> Iterator:
    """Keeps the largest error of each operand type and kind of accumulation, for the summary."""

    def note(entry: KernelEntry, fraction: float) -> None:
        key = f"{accepted(entry.config).a_dtype} with {entry.config.design.accumulation}"
        if fraction > _worst.get(key, (0.0, ""))[0]:
            _worst[key] = (fraction, request.node.name)

    return note
