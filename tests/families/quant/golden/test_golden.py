"""One reference rendering for each quantisation template; `pytest tests -k golden --update-golden` rewrites them."""

from pathlib import Path

import pytest

from gemmill.locations import templates_dir
from rendered import hold, kept, templates_of

FOLDER = Path(__file__).parent / "quant"
CASES = {
    "static.cu": "sm90a_quant_static_f32_s8_none_f32_asym",
    "tensor.cu": "sm90a_quant_tensor_bf16_e4m3_none_f32_sym",
    "token.cu": "sm90a_quant_token_f16_e4m3_geluerf_f32_sym",
    "token_azp.cu": "sm90a_quant_token_bf16_s8_none_f32_asym",
    "group.cu": "sm90a_quant_group_bf16_e4m3_silu_g128ue8m0x4_sym",
    "any_group.cu": "sm90a_quant_group_f32_e4m3_none_f32pow2_vllmsym",
    "block.cu": "sm90a_quant_block_bf16_e2m1_silu_g16ue4m3_sym",
    "dequant.cu": "sm90a_quant_dequant_f16_e2m1_none_g16ue4m3_sym",
    "weight_dequant.cu": "sm90a_quant_weightdequant_bf16_e2m1_none_g16ue4m3_sym",
    "static_vllm.cu": "sm90a_quant_static_bf16_e4m3_silu_f32_vllmsym",
    "token_azp_vllm.cu": "sm90a_quant_token_bf16_s8_none_f32_vllmasym",
    "group_vllm.cu": "sm90a_quant_group_bf16_s8_none_g64f32_vllmsym",
    "rms_token.cu": "sm90a_quant_rmstoken_bf16_s8_none_f32_sym",
    "rms_token_vllm.cu": "sm90a_quant_rmstoken_f16_e4m3_none_f32_vllmsym",
    "rms_group.cu": "sm90a_quant_rmsgroup_bf16_e4m3_none_g64f32_sym",
}


@pytest.mark.parametrize("file", CASES)
def test_rendering_is_the_reference(file: str, update_golden: bool) -> None:
    hold(CASES[file], FOLDER / file, update_golden)


def test_no_reference_without_a_case() -> None:
    assert {path.name for path in FOLDER.iterdir()} == kept(CASES)


def test_every_template_is_in_a_reference() -> None:
    assert templates_of(CASES) == {f"quant/{path.name}" for path in (templates_dir() / "quant").iterdir()}
