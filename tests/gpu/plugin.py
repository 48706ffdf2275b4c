"""Tests below any folder named `gpu` need one: `pytest -m gpu --level L1 [--build ID] [--match TEXT]`.

Most are made from the manifest of the loaded build. L0 is one shape for each variant, L1 the shapes where kernels go
wrong, L2 many. `--dry-run` runs the tests' own logic on a CPU, with the reference in the place of the kernels. Without a
GPU all are left out, and their number is printed.
"""

import pytest
import torch

import gemmill
from closing import LINES, below
from gemmill.manifest import ManifestError


def _no_gpu(config: pytest.Config) -> bool:
    return not torch.cuda.is_available() and not config.getoption("--dry-run")


def _build_loads(config: pytest.Config) -> bool:
    try:
        gemmill.load(config.getoption("--build"))
    except (OSError, RuntimeError, ManifestError):
        return False
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = below("gpu", items)
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


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> torch.device:
    return torch.device("cpu" if pytestconfig.getoption("--dry-run") else "cuda")
