"""A reference rendering of each template of grouped GEMMs; `pytest tests -k golden --update-golden` rewrites them."""

from pathlib import Path

import pytest

from gemmill.emit import emit
from gemmill.space.names import parse_name

REFERENCES = Path(__file__).parent / "moe"
NAMES = {
    "biased_unaligned_grouped_mm.cu": "sm90a_groupedunaligned_e4m3_bf16_group128_bias",
    "unaligned_grouped_mm_group32_rows.cu": "sm90a_groupedunaligned_e4m3_bf16_group32_rows",
    "packed_grouped_mm.cu": "sm90a_groupedfp4_bf16_nvfp4_bf16_t8x64_s7",
    "packed_grouped_mm_folded.cu": "sm90a_groupedfp4_e4m3_mxfp4_bf16_t128x128_s7",
}


@pytest.mark.parametrize("file", NAMES)
def test_rendering_is_the_reference(file: str, update_golden: bool) -> None:
    text = emit(parse_name(NAMES[file])).text
    if update_golden:
        REFERENCES.mkdir(exist_ok=True)
        (REFERENCES / file).write_text(text)
    assert text == (REFERENCES / file).read_text(), "meant? pytest tests -k golden --update-golden"
