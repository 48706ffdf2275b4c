"""One reference rendering for each template of the compressed cache; `pytest tests -k golden --update-golden` rewrites them."""

from pathlib import Path

import pytest

from gemmill.emit import emit
from gemmill.locations import templates_dir
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name

FOLDER = Path(__file__).parent / "kv_cache"
CASES = {
    "hadamard": "sm90a_kvcache_hadamard_f16_d256",
    "compress": "sm90a_kvcache_compress_bf16_d128_k3v2",
    "decompress": "sm90a_kvcache_decompress_f16_d96_k3v3",
    "decode_attention": "sm90a_kvcache_decode_bf16_d128_k4v4",
    "draft_attention": "sm90a_kvcache_decode_f16_d64_k3v3_r16",
    "prefill_attention": "sm90a_kvcache_decode_bf16_d128_k4v4_r128",
    "pack": "sm90a_kvcache_pack_bf16_d96",
    "unpack": "sm90a_kvcache_unpack_f16_d64",
    "packed_scores": "sm90a_kvcache_scores_bf16_d128",
    "packed_attention": "sm90a_kvcache_attend_f16_d64",
    "slot_attention": "sm90a_kvcache_attend_bf16_d128_prod3mse2",
}


@pytest.mark.parametrize("case", CASES)
def test_rendering_is_the_reference(case: str, update_golden: bool) -> None:
    reference = FOLDER / f"{case}.cu"
    text = emit(parse_name(CASES[case])).text
    if update_golden:
        FOLDER.mkdir(exist_ok=True)
        reference.write_text(text)
    assert text == reference.read_text(), "meant? pytest tests -k golden --update-golden"


def test_every_template_is_in_a_reference() -> None:
    used = {REGISTRY.kernels_of(parse_name(name)).spell(parse_name(name)).template for name in CASES.values()}
    assert used == {f"kv_cache/{path.name}" for path in (templates_dir() / "kv_cache").iterdir()}
    assert {path.stem for path in FOLDER.iterdir()} == set(CASES)
