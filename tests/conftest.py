"""Options and fixtures of the whole test suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden's reference texts instead of comparing"
    )
    group = parser.getgroup("gpu", "GPU tests, which are made from the manifest of a build")
    group.addoption(
        "--level", choices=("L0", "L1", "L2"), default="L0", help="one shape for each variant, ragged ones, many"
    )
    group.addoption("--build", help="build id or path; the current one by default")
    group.addoption("--match", default="", help="only variants whose name contains this")
    group.addoption("--dry-run", action="store_true", help="on a CPU, with the reference in the place of the kernels")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether reference texts are to be rewritten."""
    return request.config.getoption("--update-golden")
