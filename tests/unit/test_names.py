"""Names convert both ways, and a bad one is refused with the field that is wrong."""

import lzma
import re
from pathlib import Path

import pytest

from gemmill.registry import REGISTRY
from gemmill.space.names import current_name, parse_name, symbol_of, to_name
from gemmill.space.selections import SELECTIONS, select
from gemmill.vocab import Arch, RasterOrder, ScaleGranularity, ScaleLayout, TileScheduler

COMMITTED = Path(__file__).with_name("committed_names.txt.xz")
"""Names in every version of a table or result up to 2150082e, one a line."""
EXAMPLE = "sm90a_cutlass_e4m3_e4m3_f32_bf16_scaledbias_channel_t128x128x128_c1x1x1_cooperative_fast_persistent_ab_sauto_a16b16d8"


@pytest.mark.parametrize("arch", Arch)
@pytest.mark.parametrize("selection", SELECTIONS)
def test_every_config_of_every_selection_round_trips(selection: str, arch: Arch) -> None:
    configs = select(selection, arch).configs
    assert configs
    for config in configs:
        assert parse_name(to_name(config)) == config
        assert to_name(config).isidentifier() and to_name(config).isascii()
    assert len({to_name(config) for config in configs}) == len(configs)


def test_the_name_of_an_example(make_config) -> None:
    assert to_name(make_config()) == EXAMPLE
    assert to_name(make_config(stages=3, swap_ab=True)) == EXAMPLE.replace("_ab_sauto_", "_swapab_s3_")


@pytest.mark.parametrize(
    ("changes", "suffix"),
    [
        ({"raster_order": RasterOrder.ALONG_M, "swizzle": 8}, "_ralongm_w8"),
        ({"tile_scheduler": TileScheduler.SPLIT_K, "splits": 4}, "_k4"),
        ({"tile_scheduler": TileScheduler.SPLIT_K, "splits": 0}, "_k0"),
        ({"swizzle": 2}, "_w2"),
    ],
)
def test_launch_settings_are_a_suffix(make_config, changes, suffix) -> None:
    config = make_config(**changes)
    assert to_name(config).endswith("d8" + suffix)
    assert parse_name(to_name(config)) == config


@pytest.mark.parametrize("layout", [ScaleLayout.STRIDED, ScaleLayout.MN_MAJOR])
@pytest.mark.parametrize("b_scale", ScaleGranularity)
def test_grouped_scales_round_trip(make_config, b_scale, layout) -> None:
    config = make_config(a_scale=ScaleGranularity.GROUP, b_scale=b_scale, group_size=128, scale_layout=layout)
    assert f"_group{b_scale}128{layout}_" in to_name(config)
    assert parse_name(to_name(config)) == config


def test_symbols_are_shared_by_what_compiles_to_the_same_code(make_config) -> None:
    split = {"tile_scheduler": TileScheduler.SPLIT_K, "stages": 4}
    assert (
        symbol_of(make_config(**split, splits=4)) == symbol_of(make_config(**split)) != symbol_of(make_config(stages=4))
    )
    assert symbol_of(make_config(swizzle=4)) == "gemmill_" + EXAMPLE


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ("sm90a_", "sm80_", "'sm80' is not a valid Arch"),
        (
            "cutlass",
            "triton",
            "'triton' is no kind of kernel, expected one of cutlass, cutedsl, epiloguemm, visitormm, quant",
        ),
        ("_e4m3_e4m3", "_e9m9_e4m3", "a_dtype 'e9m9', expected e4m3, e5m2, "),
        ("_f32_", "_s32_", "accumulator_dtype=s32 contradicts a_dtype=e4m3: it is f32"),
        ("scaledbias", "relu", "epilogue 'relu', expected scaled, scaledbias, scaledazp or scaledazppertoken"),
        ("channel", "groupgroup", "scale_layout 'groupgroup', expected channel or "),
        ("channel", "groupgroup0strided", "group_size=0 contradicts a_scale=group b_scale=group"),
        ("t128x128x128", "t128x128", "tile_shape_mnk 't128x128', expected tMxNxK"),
        ("t128x128x128", "128x128x128", "tile_shape_mnk '128x128x128', expected tMxNxK"),
        ("t128x128x128", "t128xNx128", "tile_shape_mnk 't128xNx128', expected tMxNxK"),
        ("c1x1x1", "c1x0x1", "tile (128, 128, 128) and cluster (1, 0, 1) must be positive"),
        ("cooperative", "heroic", "kernel_schedule 'heroic', expected "),
        ("_fast_", "_quick_", "accumulation 'quick', expected "),
        ("persistent", "streamj", "tile_scheduler 'streamj', expected "),
        ("_ab_", "_ba_", "swap_ab 'ba', expected ab or swapab"),
        ("sauto", "smany", "stages 'smany', expected sauto or s and a number"),
        ("sauto", "4", "stages '4', expected sauto or s and a number"),
        ("sauto", "s0", "stages=0 must be positive, or None for automatic"),
        (
            "a16b16d8",
            "a16b16",
            "expected standard or fewrows; or d and a number; or p and a number; or a and a number, b and a number, d and a number",
        ),
        (
            "d8",
            "d8_x1",
            "field 'x1', expected rauto, ralongm or ralongn; or w and a number; or k and a number; or nothing more",
        ),
        ("d8", "d8_rup", "field 'rup', expected rauto, "),
        ("d8", "d8_wide", "field 'wide', expected rauto, "),
        ("d8", "d8_w2_ralongm", "field 'ralongm', expected k and a number; or nothing more"),
        ("d8", "d8_w1", "it would be written"),
        ("t128x", "t0128x", "it would be written"),
        ("sm90a_cutlass_", "", "'e4m3' is no kind of kernel"),
    ],
)
def test_bad_names_are_refused_with_their_cause(old: str, new: str, cause: str) -> None:
    assert old in EXAMPLE
    name = EXAMPLE.replace(old, new, 1)
    with pytest.raises(ValueError, match=re.escape(f"{name!r} is not a kernel name: ")) as caught:
        parse_name(name)
    assert cause in str(caught.value)


@pytest.mark.parametrize("name", ["", "_" * 20, "gemmill_" + EXAMPLE, EXAMPLE + "_", EXAMPLE.upper()])
def test_what_is_not_a_name_at_all(name: str) -> None:
    with pytest.raises(ValueError, match="is not a kernel name"):
        parse_name(name)


FORMER = {
    "sm90a_gatedgroupmm_e4m3_bf16_silu_t128x16x256_c1x1x1_cooperative_promoted_swapab_sauto": (
        "sm90a_gatedmm_e4m3_bf16_silu_group128_t128x16x256_c1x1x1_cooperative_promoted_swapab_sauto"
    ),
    "sm90a_gatedexpertmm_e4m3_bf16_silu_t64x16x256_c1x1x1_basic_fast_swapab_sauto": (
        "sm90a_gatedmm_e4m3_bf16_silu_experts_t64x16x256_c1x1x1_basic_fast_swapab_sauto"
    ),
    "sm90a_gatedexpertgroupmm_e4m3_bf16_silu_t128x16x256_c1x1x1_cooperative_promoted_swapab_sauto": (
        "sm90a_gatedmm_e4m3_bf16_silu_group128_experts_t128x16x256_c1x1x1_cooperative_promoted_swapab_sauto"
    ),
    "sm90a_gatedgatheredmm_e4m3_bf16_silu_t64x16x256_c1x1x1_basic_fast_swapab_sauto": (
        "sm90a_gatedmm_e4m3_bf16_silu_experts_indexed_t64x16x256_c1x1x1_basic_fast_swapab_sauto"
    ),
    "sm90a_gatedgatheredgroupmm_e4m3_bf16_silu_t128x16x256_c1x1x1_cooperative_promoted_swapab_sauto": (
        "sm90a_gatedmm_e4m3_bf16_silu_group128_experts_indexed_t128x16x256_c1x1x1_cooperative_promoted_swapab_sauto"
    ),
    "sm90a_gatedint8mm_s8_bf16_silu_t64x16x256_c1x1x1_basic_exact_swapab_sauto": (
        "sm90a_gatedmm_s8_bf16_silu_t64x16x256_c1x1x1_basic_exact_swapab_sauto"
    ),
    "sm90a_gatedint8expertmm_s8_bf16_silu_t64x16x256_c1x1x1_basic_exact_swapab_sauto": (
        "sm90a_gatedmm_s8_bf16_silu_experts_t64x16x256_c1x1x1_basic_exact_swapab_sauto"
    ),
    "sm90a_gatedint8gatheredmm_s8_bf16_silu_t64x16x256_c1x1x1_basic_exact_swapab_sauto": (
        "sm90a_gatedmm_s8_bf16_silu_experts_indexed_t64x16x256_c1x1x1_basic_exact_swapab_sauto"
    ),
    "sm90a_gatedint8unaligned_s8_bf16": "sm90a_gatedunaligned_s8_bf16",
    "sm90a_groupedbiasmm_e4m3_bf16_channel_t64x16x256_c1x1x1_basic_fast_swapab_sauto": (
        "sm90a_groupedmm_e4m3_bf16_channel_bias_t64x16x256_c1x1x1_basic_fast_swapab_sauto"
    ),
    "sm90a_groupedbiasmm_bf16_bf16_plain_indexed_t64x16x128_c1x1x1_basic_fast_swapab_sauto": (
        "sm90a_groupedmm_bf16_bf16_plain_indexed_bias_t64x16x128_c1x1x1_basic_fast_swapab_sauto"
    ),
    "sm90a_groupedbiasunaligned_e4m3_f16_group128": "sm90a_groupedunaligned_e4m3_f16_group128_bias",
    "sm90a_fp4fp8_e4m3xmxfp4_bf16_t256_g1b1_s5_batched_k2": "sm90a_fp4weight_e4m3xmxfp4_t256_g1b1_s5_batched_k2",
    "sm90a_fp4fp8_e4m3xmxfp4_f16_t64_g1b1_s6_groups": "sm90a_fp4weight_e4m3xmxfp4_f16_t64_g1b1_s6_groups",
    "sm90a_tmafew_floatsxmxfp8_bf16_t16_w8_s2_k2": "sm90a_widenedfew_floatsxmxfp8_bf16_t16_w8_tma2_packed_k2",
    "sm90a_widenedmany_mxfp4xmxfp4_bf16_t128x256": "sm90a_widened_mxfp4xmxfp4_bf16_t128x256_words",
    "sm90a_widenedmany_nvfp4xnvfp4_bf16_t128x128_s3_k2": "sm90a_widened_nvfp4xnvfp4_bf16_t128_ahead_s3_k2",
}
"""Names of earlier releases, one of each former tag at least, and today's."""


@pytest.mark.parametrize("old", FORMER)
def test_names_of_earlier_releases_are_read(old: str) -> None:
    assert current_name(old) == to_name(parse_name(old)) == FORMER[old]


def test_each_former_tag_has_an_example() -> None:
    assert {old.split("_")[1] for old in FORMER} == set(REGISTRY.former_tags)


def test_a_former_name_is_read_only_as_it_was_written() -> None:
    """With a word that its tag told already, or without one of its own."""
    old = next(iter(FORMER))
    others = ("_t128", "_group128_t128"), ("_silu", ""), ("_sauto", "_sauto_k2"), ("groupmm_e4m3", "int8mm_e4m3")
    for wrong in (old.replace(*other) for other in others):
        with pytest.raises(ValueError, match="is not a kernel name"):
            parse_name(wrong)
        assert current_name(wrong) == wrong


def test_kernels_of_a_former_architecture_are_those_of_its_family() -> None:
    old = "sm120a_blockscaled_nvfp4xnvfp4_bf16_t128x128x128_c1x1x1_cooperative"
    assert current_name(old) == to_name(parse_name(old)) == old.replace("sm120a", "sm120f")


def test_other_texts_are_no_former_names() -> None:
    for text in (EXAMPLE, "", "x", "sm90a_*", "re:gated"):
        assert current_name(text) == text


def test_every_name_that_was_ever_committed_is_read() -> None:
    """Those of tables and results, of this tree and of its history, whose results have left it; users have them too."""
    root = Path(__file__).parents[2]
    tags = {*REGISTRY.former_tags, *(kernels.tag for family in REGISTRY.families for kernels in family.kernels)}
    form = re.compile(r"\bsm(?:90a|100a|120a)_(\w+)")
    paths = (
        path
        for folder in ("generator/gemmill/runtime/tables", "benchmarks/results")
        for path in (root / folder).iterdir()
    )
    logs = re.compile(r'"log": \[.*?\n *\]', re.DOTALL)  # of engines, whose lines end after so many characters
    texts = [logs.sub("", path.read_text(encoding="utf-8")) for path in paths if path.suffix == ".json"]
    texts.append(lzma.decompress(COMMITTED.read_bytes()).decode())
    found = {match[0] for text in texts for match in form.finditer(text)}
    known = [name for name in found if name.split("_")[1] in tags]
    assert len(known) > 2500
    unread = [name for name in known if not _is_read(name)]
    assert unread == []


def _is_read(name: str) -> bool:
    try:
        parse_name(name)
    except ValueError:
        return False
    return True
