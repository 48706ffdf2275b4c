"""Reference renderings of the template of sparse GEMMs; `pytest tests -k golden --update-golden` rewrites them."""

from pathlib import Path

import pytest

from rendered import hold, kept

FOLDER = Path(__file__).parent / "sparse_mm"
CASES = {
    "basic.cu": "sm90a_sparsemm_e4m3_f16_scaledbias_t64x16x256_c1x1x1_basic_promoted_s4",
    "cooperative.cu": "sm90a_sparsemm_s8_bf16_scaledazppertoken_t128x256x128_c2x1x1_cooperative_exact_sauto_w8",
    "pingpong.cu": "sm90a_sparsemm_bf16_bf16_scaled_t128x128x128_c1x2x1_pingpong_fast_sauto",
    "streamk.cu": "sm90a_sparsemm_bf16_bf16_scaledbias_t128x128x128_c2x1x1_cooperative_fast_streamk_sauto",
}


@pytest.mark.parametrize("file", CASES)
def test_rendering_is_the_reference(file: str, update_golden: bool) -> None:
    hold(CASES[file], FOLDER / file, update_golden)


def test_no_reference_without_a_case() -> None:
    assert {path.name for path in FOLDER.iterdir()} == kept(CASES)
