"""One reference rendering for each template; `pytest tests -k golden --update-golden` rewrites them."""

from pathlib import Path

import pytest

from gemmill.locations import templates_dir
from rendered import hold, kept, templates_of

FOLDER = Path(__file__).parent / "blockscaled"
CASES = {
    "packed_mm.cu": "sm90a_fp4weight_floatsxmxfp4_t48_g2b2_s4",
    "packed_mm_warps.cu": "sm90a_fp4weight_floatsxnvfp4_t16_r2w4b1_s4",
    "skinny_mm.cu": "sm90a_widenedfew_nvfp4xnvfp4_bf16_t16_w4",
    "skinny_mm_in_order.cu": "sm90a_widenedfew_floatsxmxfp6_f16_t8_w4_packed",
    "skinny_cp_async_mm.cu": "sm90a_widenedfew_floatsxmxfp8_f16_t8_w4_s2_packed",
    "skinny_tma_mm.cu": "sm90a_widenedfew_floatsxmxfp4_f16_t16_w4_tma3_packed_k2",
    "large_prefetch_mm.cu": "sm90a_widened_nvfp4xnvfp4_f16_t64x256_ahead_s2",
    "large_mm.cu": "sm90a_widened_mxfp4xmxfp4_f16_t64x128_words",
    "packed_mm_folded.cu": "sm90a_fp4weight_e4m3xmxfp4_f16_t64_g1b2_s5_groups",
    "packed_mm_batched.cu": "sm90a_fp4weight_e4m3xmxfp4_t256_g1b1_s5_batched",
    "packed_mm_persistent.cu": "sm90a_fp4weight_floatsxnvfp4_t256_g1b1_s5_stays",
    "packed_mm_folded_warps.cu": "sm90a_fp4weight_e4m3xnvfp4_t8_r1w4b1_s6",
    "general_mm.cu": "sm90a_widened_mxfp8xmxfp6_f16_t128",
    "pair_sm100a.cu": "sm100a_blockscaled_mxfp8xmxfp6_f16_t256x128x128_c2x1x1_2sm",
    "pair_sm120f.cu": "sm120f_blockscaled_nvfp4xnvfp4_bf16_t128x128x128_c1x1x1_cooperative",
}


@pytest.mark.parametrize("file", CASES)
def test_rendering_is_the_reference(file: str, update_golden: bool) -> None:
    hold(CASES[file], FOLDER / file, update_golden)


def test_no_reference_without_a_case() -> None:
    assert {path.name for path in FOLDER.iterdir()} == kept(CASES)


def test_every_template_is_in_a_reference() -> None:
    assert templates_of(CASES) == {f"blockscaled/{path.name}" for path in (templates_dir() / "blockscaled").iterdir()}
