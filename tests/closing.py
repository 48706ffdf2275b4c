"""What a run says at its end beside pytest's own words, whichever process found it."""

import pytest

LINES = pytest.StashKey[list[str]]()
