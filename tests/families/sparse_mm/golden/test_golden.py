"""Reference renderings of the template of sparse GEMMs; `pytest tests -k golden --update-golden` rewrites them."""

from pathlib import Path

import pytest

from gemmill.emit import emit
from gemmill.space.names import parse_name

FOLDER = Path(__file__).parent / "sparse_mm"
NAMES = {
    "basic": "sm90a_sparsemm_e4m3_f16_scaledbias_t64x16x256_c1x1x1_basic_promoted_s4",
    "cooperative": "sm90a_sparsemm_s8_bf16_scaledazppertoken_t128x256x128_c2x1x1_cooperative_exact_sauto_w8",
    "pingpong": "sm90a_sparsemm_bf16_bf16_scaled_t128x128x128_c1x2x1_pingpong_fast_sauto",
}


@pytest.mark.parametrize("kind", NAMES)
def test_rendering_is_the_reference(kind: str, update_golden: bool) -> None:
    text, reference = emit(parse_name(NAMES[kind])).text, FOLDER / f"{kind}.cu"
    if update_golden:
        reference.parent.mkdir(exist_ok=True)
        reference.write_text(text)
    assert text == reference.read_text(), "meant? pytest tests -k golden --update-golden"
