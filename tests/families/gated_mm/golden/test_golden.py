"""A reference rendering of the template of gated GEMMs; `pytest tests -k golden --update-golden` rewrites it."""

from pathlib import Path

from gemmill.emit import emit
from gemmill.space.names import parse_name

REFERENCE = Path(__file__).parent / "gated_mm" / "gated_mm.py"
NAME = "sm90a_gatedmm_e4m3_e4m3group128_swiglu_t256x16x128_c1x1x1_cooperative_fast_swapab_sauto_even"


def test_rendering_is_the_reference(update_golden: bool) -> None:
    text = emit(parse_name(NAME)).text
    if update_golden:
        REFERENCE.parent.mkdir(exist_ok=True)
        REFERENCE.write_text(text)
    assert text == REFERENCE.read_text(), "meant? pytest tests -k golden --update-golden"
