"""Names of kernels, also of earlier releases, and texts that are no names."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, product

import pytest

from families.blockscaled.kernel_configs import (
    AHEAD,
    BATCHED,
    FEW,
    FOLDED,
    FOLDED_WARPS,
    GOOD,
    MANY,
    PAIRED,
    RING,
    STAYING,
    TMA,
    WARPS,
    WIDENED,
)
from gemmill.families.blockscaled.config import (
    AnyConfig,
)
from gemmill.families.blockscaled.design import (
    FewLoop,
    ManyLoop,
)
from gemmill.families.blockscaled.pairs import (
    Pair,
)
from gemmill.families.blockscaled.selections import default, smoke, sweep
from gemmill.registry import REGISTRY
from gemmill.space.names import current_name, parse_name, to_name
from gemmill.vocab import Arch, DType
from making import changed


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (GOOD, "sm90a_fp4weight_floatsxnvfp4_t16_g2b1_s8"),
        (changed(GOOD, splits=4), "sm90a_fp4weight_floatsxnvfp4_t16_g2b1_s8_k4"),
        (WARPS, "sm90a_fp4weight_floatsxnvfp4_t16_r4w2b1_s5"),
        (WIDENED, "sm90a_widened_nvfp4xnvfp4_f16_t128"),
        (changed(FEW, splits=2), "sm90a_widenedfew_mxfp4xmxfp4_f16_t8_w4_k2"),
        (RING, "sm90a_widenedfew_mxfp4xmxfp4_f16_t8_w4_s3"),
        (
            changed(RING, pair=Pair.FLOATS_MXFP6, prepacked=True, splits=2),
            "sm90a_widenedfew_floatsxmxfp6_f16_t8_w4_s3_packed_k2",
        ),
        (TMA, "sm90a_widenedfew_floatsxmxfp8_f16_t8_w4_tma2_packed"),
        (changed(MANY, splits=4), "sm90a_widened_nvfp4xnvfp4_bf16_t64x256_words_k4"),
        (
            changed(AHEAD, tile_mn=(64, 128), stages=3, splits=2),
            "sm90a_widened_nvfp4xnvfp4_bf16_t64x128_ahead_s3_k2",
        ),
        (changed(AHEAD, tile_mn=(128, 128)), "sm90a_widened_nvfp4xnvfp4_bf16_t128_ahead_s2"),
        (changed(WIDENED, pair=Pair.FLOATS_MXFP8, prepacked=True), "sm90a_widened_floatsxmxfp8_f16_t128_packed"),
        (
            changed(WIDENED, pair=Pair.E4M3_MXFP4, tile_mn=(64, 64), grouped=True),
            "sm90a_widened_e4m3xmxfp4_f16_t64_groups",
        ),
        (FOLDED, "sm90a_fp4weight_e4m3xmxfp4_t16_g2b1_s5"),
        (changed(FOLDED, out_dtype=DType.F16), "sm90a_fp4weight_e4m3xmxfp4_f16_t16_g2b1_s5"),
        (FOLDED_WARPS, "sm90a_fp4weight_e4m3xmxfp4_t8_r1w4b1_s6"),
        (changed(FEW, pair=Pair.FLOATS_MXFP6, prepacked=True), "sm90a_widenedfew_floatsxmxfp6_f16_t8_w4_packed"),
        (changed(FOLDED, grouped=True, splits=2), "sm90a_fp4weight_e4m3xmxfp4_t16_g2b1_s5_groups_k2"),
        (BATCHED, "sm90a_fp4weight_e4m3xmxfp4_t256_g1b1_s5_batched_k2"),
        (STAYING, "sm90a_fp4weight_e4m3xmxfp4_t256_g1b1_s5_stays"),
        (PAIRED, "sm100a_blockscaled_mxfp8xmxfp6_bf16_t256x128x128_c2x1x1_2sm"),
    ],
)
def test_names_and_back(config: AnyConfig, name: str) -> None:
    assert to_name(config) == name
    assert parse_name(name) == config


FORMER = {
    "fp4fp8": (
        "fp4weight",
        ((BATCHED, "e4m3xmxfp4_bf16_t256_g1b1_s5_batched_k2"), (FOLDED_WARPS, "e4m3xmxfp4_bf16_t8_r1w4b1_s6")),
    ),
    "tmafew": ("widenedfew", ((changed(TMA, splits=2), "floatsxmxfp8_f16_t8_w4_s2_k2"),)),
    "widenedmany": (
        "widened",
        (
            (changed(MANY, splits=4), "nvfp4xnvfp4_bf16_t64x256_k4"),
            (changed(MANY, tile_mn=(128, 128)), "nvfp4xnvfp4_bf16_t128x128"),
            (changed(AHEAD, tile_mn=(64, 128), stages=3, splits=2), "nvfp4xnvfp4_bf16_t64x128_s3_k2"),
        ),
    ),
}
"""By a tag of earlier releases the tag of today, and names of then without architecture and tag."""


@pytest.mark.parametrize(
    ("config", "name"),
    [(config, f"sm90a_{tag}_{name}") for tag, (_, names) in FORMER.items() for config, name in names],
)
def test_names_of_earlier_releases(config: AnyConfig, name: str) -> None:
    assert parse_name(name) == config and current_name(name) == to_name(config) != name


@pytest.mark.parametrize("selection", [default, sweep, smoke])
def test_every_name_of_then_is_read(selection: Callable[[Arch], Iterator[AnyConfig]]) -> None:
    """Of every config that a former tag can say, its name of then is read as the same config."""
    read = Counter()
    for config, (tag, (now, _)) in product(chain.from_iterable(map(selection, Arch)), FORMER.items()):
        words = REGISTRY.tagged(tag).grammar.words(config, tag) if config.tag == now else []
        is_of_then = {
            "fp4fp8": config.pair in (Pair.E4M3_MXFP4, Pair.E4M3_NVFP4),
            "tmafew": getattr(config.design, "main_loop", None) is FewLoop.TMA,
            "widenedmany": getattr(config.design, "main_loop", None) in (ManyLoop.WORDS, ManyLoop.AHEAD),
        }
        if words and is_of_then[tag]:
            assert parse_name("_".join([config.arch, tag, *words])) == config
            read[tag] += 1
    assert read == {default: {"fp4fp8": 188, "tmafew": 112, "widenedmany": 60}, smoke: {"fp4fp8": 4}}.get(selection, {})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sm90a_fp4weight_floatsxnvfp4_t16_g2b1", "it ends before stages, expected s and a number"),
        (
            "sm90a_fp4weight_nvfp5_t16_g2b1_s8",
            "pair 'nvfp5', expected floatsxnvfp4, floatsxmxfp4, floatsxmxfp6, floatsxmxfp8, e4m3xmxfp4, e4m3xnvfp4, nvfp4xnvfp4, mxfp4xmxfp4, mxfp8xmxfp8, mxfp8xmxfp6 or mxfp8xmxfp4",
        ),
        (
            "sm90a_fp4weight_floatsxnvfp4_16_g2b1_s8",
            "tile_m '16', expected e4m3, e5m2, e3m2, e2m1, s8, u8, bf16, f16, f32, s32 or s64; or t and a number",
        ),
        (
            "sm90a_fp4weight_floatsxnvfp4_t16_g2_s8",
            "stages 'g2', expected r and a number, w and a number, b and a number; or g and a number, b and a number; or s and a number",
        ),
        (
            "sm90a_fp4weight_floatsxnvfp4_t16_r4g2b1_s8",
            "stages 'r4g2b1', expected r and a number, w and a number, b and a number; or g and a number, b and a number; or s and a number",
        ),
        (
            "sm90a_fp4weight_floatsxnvfp4_t16_g2b1_s8_w2",
            "field 'w2', expected groups; or tile, batched or stays; or k and a number; or nothing more",
        ),
        ("sm90a_tmafew_floatsxmxfp8_f16_t8_w4", "it ends before stages, expected s and a number"),
        ("sm90a_widened_nvfp4xnvfp4_bf16", "it ends before tile_mn, expected t and a number, or tMxN"),
        ("sm90a_widened_nvfp4xnvfp4_bf16_t64x64", "it would be written 'sm90a_widened_nvfp4xnvfp4_bf16_t64'"),
        (
            "sm90a_widened_nvfp4xnvfp4_bf16_t64_groups_packed",
            "field 'packed', expected k and a number; or nothing more",
        ),
        (
            "sm90a_widened_nvfp4xnvfp4_bf16_t64x256_s3",
            "stages=3 contradicts main_loop=pieces: ahead has some, others have two",
        ),
        (
            "sm90a_widenedfew_nvfp4xnvfp4_bf16_t8_w4_s0",
            "stages=0 contradicts main_loop=ring: codes that come straight to registers have no stages",
        ),
        (
            "sm90a_tmafew_floatsxmxfp8_f16_t8_w4_s2_packed",
            "field 'packed', expected k and a number; or nothing more",
        ),
        (
            "sm90a_fp4fp8_e4m3xmxfp4_bf16_t16",
            "it ends before stages, expected r and a number, w and a number, b and a number; or g and a number, b and a number; or s and a number",
        ),
        ("sm100a_blockscaled_nvfp4xnvfp4_bf16_t128_c1x1x1_1sm", "tile_shape_mnk 't128', expected tMxNxK"),
        (
            "sm100a_blockscaled_nvfp4xnvfp4_bf16_t128x64x256_c1x1x1_3sm",
            "sharing '3sm', expected 1sm, 2sm, cooperative or pingpong",
        ),
    ],
)
def test_names_that_are_none(name: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_name(name)
    assert str(caught.value) == f"{name!r} is not a kernel name: {said}"
