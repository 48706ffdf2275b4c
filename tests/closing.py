"""Lines that a run adds to pytest's summary, from any of its processes; and the tests that a folder's name means."""

from pathlib import Path

import pytest

LINES = pytest.StashKey[list[str]]()

HERE = Path(__file__).parent


def below(folder: str, items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests below folders of this name, of any family or of none."""
    return [item for item in items if folder in item.path.relative_to(HERE).parent.parts]
