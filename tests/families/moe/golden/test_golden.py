"""A reference rendering of the template of grouped GEMMs; `pytest tests -k golden --update-golden` rewrites it."""

from pathlib import Path

from gemmill.emit import emit
from gemmill.space.names import parse_name

REFERENCE = Path(__file__).parent / "moe" / "grouped_mm.py"
NAME = "sm90a_groupedmm_e4m3_f16_group128_t64x16x256_c1x1x1_basic_promoted_swapab_s4"


def test_rendering_is_the_reference(update_golden: bool) -> None:
    text = emit(parse_name(NAME)).text
    if update_golden:
        REFERENCE.parent.mkdir(exist_ok=True)
        REFERENCE.write_text(text)
    assert text == REFERENCE.read_text(), "meant? pytest tests -k golden --update-golden"
