"""The reference rendering of the router's template; `pytest tests -k golden --update-golden` rewrites it."""

from pathlib import Path

import pytest

from rendered import hold, kept

FOLDER = Path(__file__).parent / "routing"
CASES = {"router_topk.cu": "sm90a_routing_f16"}


@pytest.mark.parametrize("file", CASES)
def test_rendering_is_the_reference(file: str, update_golden: bool) -> None:
    hold(CASES[file], FOLDER / file, update_golden)


def test_no_reference_without_a_case() -> None:
    assert {path.name for path in FOLDER.iterdir()} == kept(CASES)
