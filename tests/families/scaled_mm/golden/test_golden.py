"""One reference rendering for each template and partial; `pytest tests -k golden --update-golden` rewrites them."""

from pathlib import Path

import jinja2
import pytest

from gemmill.emit import emit, render
from gemmill.gemm.traced import learn, of_text
from gemmill.locations import templates_dir
from gemmill.space.names import parse_name
from rendered import hold, kept

FOLDER = Path(__file__).parent / "cutlass"
OWN = (
    '{"name":"scaled_relu","accumulator":"f32","inputs":[["a_scale","row","f32"],["bias","column","out"],["top","scalar","f32"]],'
    '"steps":[["fma",[0,1,2],0.0],["number",[],0.0],["gt",[4,5],0.0],["where",[6,4,5],0.0],["min",[7,3],0.0]],"result":8}'
)
CASES = {
    "visitor.cu": f"sm90a_visitormm_{learn(of_text(OWN)).key}_e4m3_e4m3_f32_e4m3_scaled_channel_t64x16x256_c1x1x1_pingpong_fast_persistent_swapab_sauto_a16b16d16",
    "cooperative.cu": "sm90a_cutlass_e4m3_e4m3_f32_bf16_scaledbias_channel_t128x256x128_c2x1x1_cooperative_fast_persistent_ab_sauto_a16b16d8",
    "pingpong.cu": "sm90a_cutlass_e4m3_e4m3_f32_f16_scaled_channel_t64x128x128_c1x2x1_pingpong_promoted_persistent_ab_s4_a16b16d8",
    "swapab_streamk.cu": "sm90a_cutlass_e4m3_e4m3_f32_bf16_scaledbias_channel_t128x16x128_c1x1x1_cooperative_fast_streamk_swapab_sauto_a16b16d8",
    "swapab_basic.cu": "sm90a_cutlass_s8_s8_s32_bf16_scaledbias_channel_t64x32x256_c1x1x1_basic_exact_persistent_swapab_sauto_a16b16d8",
    "split_k.cu": "sm90a_cutlass_e4m3_e4m3_f32_bf16_scaledbias_channel_t64x16x256_c1x1x1_basic_fast_splitk_swapab_s4_a16b16d8",
    "split_k_promoted.cu": "sm90a_cutlass_e4m3_e4m3_f32_f16_scaled_channel_t128x16x256_c1x1x1_cooperative_promoted_splitk_swapab_s6_a16b16d8",
    "few_rows.cu": "sm90a_cutlass_bf16_bf16_f32_bf16_scaledbias_channel_t64x32x128_c1x1x1_basic_fast_persistent_swapab_s4_fewrows_a8b8d8",
    "few_rows_groups.cu": "sm90a_cutlass_e4m3_e4m3_f32_bf16_scaledbias_groupblock128strided_t64x16x256_c1x1x1_basic_promoted_splitk_swapab_s5_fewrows_a16b16d8",
    "azp.cu": "sm90a_cutlass_s8_s8_s32_bf16_scaledazp_channel_t128x128x128_c2x1x1_pingpong_exact_persistent_ab_sauto_a16b16d8",
    "azp_per_token.cu": "sm90a_cutlass_s8_s8_s32_f16_scaledazppertoken_channel_t128x128x128_c2x1x1_pingpong_exact_persistent_ab_sauto_a16b16d8",
    "unaligned_fp8.cu": "sm90a_cutlass_e4m3_e4m3_f32_bf16_scaledbias_channel_t64x64x64_c1x1x1_mmasync_promoted_persistent_ab_sauto_a1b1d1",
    "unaligned_int8_azp.cu": "sm90a_cutlass_s8_s8_s32_f16_scaledazppertoken_channel_t64x64x64_c1x1x1_mmasync_exact_persistent_ab_sauto_a1b1d1",
    "unaligned_bf16.cu": "sm90a_cutlass_bf16_bf16_f32_bf16_scaledbias_channel_t64x64x64_c1x1x1_mmasync_fast_persistent_ab_sauto_a1b1d1",
    "group_unaligned.cu": "sm90a_cutlass_s8_s8_s32_f16_scaledbias_groupgroup64strided_t64x64x64_c1x1x1_mmasync_exact_persistent_ab_sauto_a1b1d1",
    "blockwise.cu": "sm90a_cutlass_e4m3_e4m3_f32_bf16_scaledbias_groupblock128mnmajor_t128x128x128_c1x2x1_cooperative_promoted_persistent_ab_sauto_a16b16d8",
    "sm100a.cu": "sm100a_cutlass_e4m3_e4m3_f32_bf16_scaledbias_channel_t128x128x128_c1x1x1_cooperative_fast_persistent_ab_sauto_a16b16d8",
    "sm120f.cu": "sm120f_cutlass_e4m3_e4m3_f32_bf16_scaledbias_channel_t128x128x128_c1x1x1_cooperative_fast_persistent_ab_sauto_a16b16d8",
}


@pytest.mark.parametrize("file", CASES)
def test_rendering_is_the_reference(file: str, update_golden: bool) -> None:
    hold(CASES[file], FOLDER / file, update_golden)


def test_no_reference_without_a_case() -> None:
    assert {path.name for path in FOLDER.iterdir()} == kept(CASES)


def test_every_template_and_partial_is_in_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    read = set()

    class Recording(jinja2.FileSystemLoader):
        def get_source(self, environment: jinja2.Environment, template: str) -> tuple:
            read.add(template)
            return super().get_source(environment, template)

    recording = render.environment.__wrapped__()
    recording.loader = Recording(templates_dir())
    monkeypatch.setattr(render, "environment", lambda root=None: recording)
    for name in CASES.values():
        emit(parse_name(name))
    folders = (templates_dir() / "scaled_mm" / "cutlass", templates_dir() / "gemm")
    there = [path for folder in folders for path in folder.iterdir()]
    assert read == {path.relative_to(templates_dir()).as_posix() for path in there}
