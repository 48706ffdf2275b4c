"""Names convert both ways, and a bad one is refused with the field that is wrong."""

import re

import pytest

from gemmill.space.names import parse_name, symbol_of, to_name
from gemmill.space.selections import SELECTIONS, select
from gemmill.vocab import Arch, RasterOrder, ScaleGranularity, ScaleLayout, TileScheduler

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
        ("_e4m3_e4m3", "_e9m9_e4m3", "'e9m9' is not a valid DType"),
        ("_f32_", "_s32_", "accumulator_dtype=s32 contradicts a_dtype=e4m3: it is f32"),
        ("scaledbias", "relu", "'relu' is not a valid EpilogueKind"),
        ("channel", "groupgroup", "scales 'groupgroup'"),
        ("channel", "groupgroup0strided", "group_size=0 contradicts a_scale=group b_scale=group"),
        ("t128x128x128", "t128x128", "shape 't128x128', expected tMxNxK"),
        ("t128x128x128", "128x128x128", "shape '128x128x128', expected tMxNxK"),
        ("t128x128x128", "t128xNx128", "shape 't128xNx128', expected tMxNxK"),
        ("c1x1x1", "c1x0x1", "tile (128, 128, 128) and cluster (1, 0, 1) must be positive"),
        ("cooperative", "heroic", "'heroic' is not a valid KernelSchedule"),
        ("_fast_", "_quick_", "'quick' is not a valid Accumulation"),
        ("persistent", "streamj", "'streamj' is not a valid TileScheduler"),
        ("_ab_", "_ba_", "operand order 'ba', expected ab or swapab"),
        ("sauto", "smany", "stages 'smany', expected sauto or s and a number"),
        ("sauto", "4", "stages '4', expected sauto or s and a number"),
        ("sauto", "s0", "stages 's0', expected sauto or s and a number"),
        ("a16b16d8", "a16b16", "alignment 'a16b16', expected a, b and d, each with a number"),
        ("d8", "d8_x1", "launch setting 'x1'"),
        ("d8", "d8_rup", "'up' is not a valid RasterOrder"),
        ("d8", "d8_wide", "launch setting 'wide'"),
        ("d8", "d8_w2_ralongm", "it would be written"),
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
