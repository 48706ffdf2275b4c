"""Reference renderings of the templates of fused experts; `pytest tests -k golden --update-golden` rewrites them."""

from pathlib import Path

import pytest

from gemmill.emit import emit
from gemmill.space.names import parse_name

FOLDER = Path(__file__).parent / "fused_moe"
NAMES = {
    "fused_experts": "sm90a_fusedexperts_e4m3_bf16_group128_t16",
    "streamed_experts": "sm90a_fusedexperts_e4m3_bf16_group128_t16s",
    "apart_experts": "sm90a_fusedexperts_e4m3_bf16_group128_t128a",
    "persistent_upcast": "sm90a_fusedfp4experts_nvfp4_t64wo",
}


@pytest.mark.parametrize("kind", NAMES)
def test_rendering_is_the_reference(kind: str, update_golden: bool) -> None:
    reference, text = FOLDER / f"{kind}.cu", emit(parse_name(NAMES[kind])).text
    if update_golden:
        reference.parent.mkdir(exist_ok=True)
        reference.write_text(text)
    assert text == reference.read_text(), "meant? pytest tests -k golden --update-golden"
