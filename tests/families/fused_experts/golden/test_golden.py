"""Reference renderings of the templates of fused experts; `pytest tests -k golden --update-golden` rewrites them."""

from pathlib import Path

import pytest

from rendered import hold, kept

FOLDER = Path(__file__).parent / "fused_experts"
CASES = {
    "fused_experts.cu": "sm90a_fusedexperts_e4m3_bf16_group128_t16",
    "streamed_experts.cu": "sm90a_fusedexperts_e4m3_bf16_group128_t16s",
    "apart_experts.cu": "sm90a_fusedexperts_e4m3_bf16_group128_t128a",
    "persistent_upcast.cu": "sm90a_fusedfp4experts_nvfp4_t64wo",
}


@pytest.mark.parametrize("file", CASES)
def test_rendering_is_the_reference(file: str, update_golden: bool) -> None:
    hold(CASES[file], FOLDER / file, update_golden)


def test_no_reference_without_a_case() -> None:
    assert {path.name for path in FOLDER.iterdir()} == kept(CASES)
