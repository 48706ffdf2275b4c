"""Tests below any folder named `compile` compile with the real nvcc. They build the smoke selection, which is minutes where
the cache below `gemmill.settings.home()` does not have it; without a toolchain all are left out, and it is said what is
missing.
"""

from contextlib import suppress
from pathlib import Path

import pytest

from closing import LINES, below
from gemmill import settings
from gemmill.build.driver import build
from gemmill.build.errors import BuildError
from gemmill.build.options import BuildOptions, BuildResult
from gemmill.build.toolchain import ToolchainPaths, find_toolchain
from gemmill.space.selections import select


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = below("compile", items)
    if not here:
        return
    try:
        find_toolchain()
        reason = ""
    except BuildError as error:
        reason = str(error)
        config.stash[LINES].append(f"{len(here)} tests that compile left out: {reason}")
    for item in here:
        item.add_marker(pytest.mark.compile)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def toolchain() -> ToolchainPaths:
    """The toolchain of this machine."""
    return find_toolchain()


@pytest.fixture(scope="session")
def smoke() -> BuildResult:
    """The smoke selection, built or found built."""
    return build(select("smoke"), BuildOptions())


@pytest.fixture(scope="session")
def inspected() -> Path:
    """A home of builds that no one must load by chance. Its cache is the usual one: most host code is the same for every architecture."""
    usual, home = settings.home(), settings.home() / "inspected"
    for folder in (usual / "cache", home):
        folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (home / "cache").symlink_to(Path("..", "cache"))
    return home
