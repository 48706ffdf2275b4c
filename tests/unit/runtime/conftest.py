"""Builds without an extension, for every test here."""

from collections.abc import Iterator

import pytest

from builds import shaped_call, smoke_build, smoke_configs, table_of
from gemmill.runtime import holding

__all__ = ["shaped_call", "smoke_build", "smoke_configs", "table_of"]


@pytest.fixture(autouse=True)
def _choosing_freely() -> Iterator[None]:
    """No test leaves batch invariance asked for."""
    yield
    holding.hold_everywhere(False)
    holding.hold_here(None)
