"""Reference renderings of the templates of gated GEMMs; `pytest tests -k golden --update-golden` rewrites it."""

from pathlib import Path

import pytest

from rendered import hold, kept

FOLDER = Path(__file__).parent / "gated_mm"
CASES = {
    "unaligned_gated_mm.cu": "sm90a_gatedunaligned_e4m3_e4m3group128",
    "unaligned_gated_mm_of_int8.cu": "sm90a_gatedunaligned_s8_bf16",
    "activate_packed.cu": "sm90a_gatedparts_e4m3_e4m3group128",
}


@pytest.mark.parametrize("file", CASES)
def test_rendering_is_the_reference(file: str, update_golden: bool) -> None:
    hold(CASES[file], FOLDER / file, update_golden)


def test_no_reference_without_a_case() -> None:
    assert {path.name for path in FOLDER.iterdir()} == kept(CASES)
