"""A reference rendering of the template of fused experts; `pytest tests -k golden --update-golden` rewrites it."""

from pathlib import Path

from gemmill.emit import emit
from gemmill.space.names import parse_name

REFERENCE = Path(__file__).parent / "fused_moe" / "fused_experts.cu"
NAME = "sm90a_fusedexperts_e4m3_bf16_group128_t16"


def test_rendering_is_the_reference(update_golden: bool) -> None:
    text = emit(parse_name(NAME)).text
    if update_golden:
        REFERENCE.parent.mkdir(exist_ok=True)
        REFERENCE.write_text(text)
    assert text == REFERENCE.read_text(), "meant? pytest tests -k golden --update-golden"
