"""A reference rendering of each template of grouped GEMMs; `pytest tests -k golden --update-golden` rewrites them."""

from pathlib import Path

import pytest

from rendered import hold, kept

FOLDER = Path(__file__).parent / "grouped_mm"
CASES = {
    "biased_unaligned_grouped_mm.cu": "sm90a_groupedunaligned_e4m3_bf16_group128_bias",
    "unaligned_grouped_mm_group32_rows.cu": "sm90a_groupedunaligned_e4m3_bf16_group32_rows",
    "packed_grouped_mm.cu": "sm90a_groupedfp4_bf16_nvfp4_bf16_t8x64_s7",
    "packed_grouped_mm_folded.cu": "sm90a_groupedfp4_e4m3_mxfp4_bf16_t128x128_s7",
}


@pytest.mark.parametrize("file", CASES)
def test_rendering_is_the_reference(file: str, update_golden: bool) -> None:
    hold(CASES[file], FOLDER / file, update_golden)


def test_no_reference_without_a_case() -> None:
    assert {path.name for path in FOLDER.iterdir()} == kept(CASES)
