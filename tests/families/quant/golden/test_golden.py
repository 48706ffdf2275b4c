"""One reference rendering for each quantisation template; `pytest tests -k golden --update-golden` rewrites them."""

from pathlib import Path

import pytest

from gemmill.emit import emit
from gemmill.locations import templates_dir
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name

FOLDER = Path(__file__).parent / "quant"
CASES = {
    "static": "sm90a_quant_static_f32_s8_none_f32_asym",
    "tensor": "sm90a_quant_tensor_bf16_e4m3_none_f32_sym",
    "token": "sm90a_quant_token_f16_e4m3_geluerf_f32_sym",
    "token_azp": "sm90a_quant_token_bf16_s8_none_f32_asym",
    "group": "sm90a_quant_group_bf16_e4m3_silu_g128ue8m0x4_sym",
    "any_group": "sm90a_quant_group_f32_e4m3_none_f32pow2_vllmsym",
    "block": "sm90a_quant_block_bf16_e2m1_silu_g16ue4m3_sym",
    "dequant": "sm90a_quant_dequant_f16_e2m1_none_g16ue4m3_sym",
    "static_vllm": "sm90a_quant_static_bf16_e4m3_silu_f32_vllmsym",
    "token_azp_vllm": "sm90a_quant_token_bf16_s8_none_f32_vllmasym",
    "group_vllm": "sm90a_quant_group_bf16_s8_none_g64f32_vllmsym",
    "rms_token": "sm90a_quant_rmstoken_bf16_s8_none_f32_sym",
    "rms_token_vllm": "sm90a_quant_rmstoken_f16_e4m3_none_f32_vllmsym",
    "rms_group": "sm90a_quant_rmsgroup_bf16_e4m3_none_g64f32_sym",
}


@pytest.mark.parametrize("case", CASES)
def test_rendering_is_the_reference(case: str, update_golden: bool) -> None:
    reference = FOLDER / f"{case}.cu"
    text = emit(parse_name(CASES[case])).text
    if update_golden:
        FOLDER.mkdir(exist_ok=True)
        reference.write_text(text)
    assert text == reference.read_text(), "meant? pytest tests -k golden --update-golden"


def test_no_reference_without_a_case() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(CASES)


def test_every_template_is_in_a_reference() -> None:
    used = {REGISTRY.kernels_of(parse_name(name)).spell(parse_name(name)).template for name in CASES.values()}
    assert used == {f"quant/{path.name}" for path in (templates_dir() / "quant").iterdir()}
