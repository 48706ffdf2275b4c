"""Reference renderings of the templates of gated GEMMs; `pytest tests -k golden --update-golden` rewrites it."""

from pathlib import Path

import pytest

from gemmill.emit import emit
from gemmill.space.names import parse_name

FOLDER = Path(__file__).parent / "gated_mm"
NAMES = {
    "unaligned_gated_mm.cu": "sm90a_gatedunaligned_e4m3_e4m3group128",
    "unaligned_gated_mm_of_int8.cu": "sm90a_gatedunaligned_s8_bf16",
}


@pytest.mark.parametrize("file", NAMES)
def test_rendering_is_the_reference(file: str, update_golden: bool) -> None:
    text, reference = emit(parse_name(NAMES[file])).text, FOLDER / file
    if update_golden:
        FOLDER.mkdir(exist_ok=True)
        reference.write_text(text)
    assert text == reference.read_text(), "meant? pytest tests -k golden --update-golden"
