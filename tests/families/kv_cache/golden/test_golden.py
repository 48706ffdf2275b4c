"""One reference rendering for each template of the compressed cache; `pytest tests -k golden --update-golden` rewrites them."""

from pathlib import Path

import pytest

from gemmill.locations import templates_dir
from rendered import hold, kept, templates_of

FOLDER = Path(__file__).parent / "kv_cache"
CASES = {
    "hadamard.cu": "sm90a_kvcache_hadamard_f16_d256",
    "compress.cu": "sm90a_kvcache_compress_bf16_d128_k3v2",
    "decompress.cu": "sm90a_kvcache_decompress_f16_d96_k3v3",
    "decode_attention.cu": "sm90a_kvcache_decode_bf16_d128_k4v4",
    "draft_attention.cu": "sm90a_kvcache_decode_f16_d64_k3v3_r16",
    "prefill_attention.cu": "sm90a_kvcache_decode_bf16_d128_k4v4_r128",
    "latent_attention.cu": "sm90a_kvcache_latent_bf16_d512_k4v4",
    "latent_tiles.cu": "sm90a_kvcache_latent_f16_d512_k4v4_r32",
    "pack.cu": "sm90a_kvcache_pack_bf16_d96",
    "unpack.cu": "sm90a_kvcache_unpack_f16_d64",
    "packed_scores.cu": "sm90a_kvcache_scores_bf16_d128",
    "packed_attention.cu": "sm90a_kvcache_attend_f16_d64",
    "slot_attention.cu": "sm90a_kvcache_attend_bf16_d128_prod3mse2",
}


@pytest.mark.parametrize("file", CASES)
def test_rendering_is_the_reference(file: str, update_golden: bool) -> None:
    hold(CASES[file], FOLDER / file, update_golden)


def test_no_reference_without_a_case() -> None:
    assert {path.name for path in FOLDER.iterdir()} == kept(CASES)


def test_every_template_is_in_a_reference() -> None:
    assert templates_of(CASES) == {f"kv_cache/{path.name}" for path in (templates_dir() / "kv_cache").iterdir()}
