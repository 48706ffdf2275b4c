"""Contradictions cannot be built, and configs that differ in launch settings alone share a compilation."""

import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from gemmill.families.scaled_mm.config import ACCUMULATOR_OF, RESULTS_OF, Design, KernelConfig, Launch, Operands
from gemmill.registry import REGISTRY
from gemmill.space.selections import select
from gemmill.vocab import DType, KernelSchedule, RasterOrder, ScaleGranularity, ScaleLayout

ROOT = Path(__file__).parents[3]
GROUPS = {"a_scale": ScaleGranularity.GROUP, "b_scale": ScaleGranularity.BLOCK}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"group_size": 128},
            "group_size=128 contradicts a_scale=channel b_scale=channel: a group size is given exactly when a scale is grouped",
        ),
        (
            {**GROUPS, "scale_layout": ScaleLayout.STRIDED},
            "group_size=0 contradicts a_scale=group b_scale=block: a group size is given exactly when a scale is grouped",
        ),
        (
            {**GROUPS, "group_size": 128},
            "scale_layout=vector contradicts a_scale=group b_scale=block: "
            "scales per tensor or per channel are vectors, grouped ones are mnmajor or strided",
        ),
        (
            {"scale_layout": ScaleLayout.MN_MAJOR},
            "scale_layout=mnmajor contradicts a_scale=channel b_scale=channel: "
            "scales per tensor or per channel are vectors, grouped ones are mnmajor or strided",
        ),
        ({"accumulator_dtype": DType.S32}, "accumulator_dtype=s32 contradicts a_dtype=e4m3: it is f32"),
        ({"tile_shape_mnk": (128, 0, 128)}, "tile (128, 0, 128) and cluster (1, 1, 1) must be positive"),
        ({"cluster_shape_mnk": (-1, 1, 1)}, "tile (128, 128, 128) and cluster (-1, 1, 1) must be positive"),
        ({"stages": 0}, "stages=0 must be positive, or None for automatic"),
    ],
)
def test_contradictions_raise_with_both_values(make_config, changes, message) -> None:
    with pytest.raises(ValueError) as caught:
        make_config(**changes)
    assert str(caught.value) == message


def test_grouped_scales_can_be_written_down(make_config) -> None:
    config = make_config(**GROUPS, group_size=128, scale_layout=ScaleLayout.MN_MAJOR)
    assert config.operands.group_size == 128


@pytest.mark.parametrize("kind", [Operands, Design, Launch, KernelConfig])
def test_configs_are_values(make_config, kind) -> None:
    """Frozen, hashable, and without positional arguments that could be swapped."""
    one, other = make_config(), make_config()
    assert one == other and hash(one) == hash(other)
    assert all(f.kw_only for f in fields(kind))
    with pytest.raises(FrozenInstanceError):
        one.operands.group_size = 1


def test_accumulators_are_wide() -> None:
    assert ACCUMULATOR_OF == {DType.E4M3: DType.F32, DType.S8: DType.S32, DType.BF16: DType.F32, DType.F16: DType.F32}


def test_results_have_16_bits_and_those_of_16_bit_operands_their_type() -> None:
    assert set(RESULTS_OF) == set(ACCUMULATOR_OF)
    for operand, outs in RESULTS_OF.items():
        assert outs == ((DType.BF16, DType.F16) if operand.bits == 8 else (operand,))


@pytest.mark.parametrize("launch", [{"raster_order": RasterOrder.ALONG_N}, {"swizzle": 8}, {"splits": 4}])
def test_launch_settings_cost_no_compilation(make_config, launch) -> None:
    assert {f.name for f in fields(Launch)} == {"raster_order", "swizzle", "splits"}
    assert make_config(**launch) != make_config()
    assert make_config(**launch).compiled == make_config().compiled == make_config()


def test_compiled_changes_nothing_else(make_config) -> None:
    config = make_config(stages=3, swap_ab=True, kernel_schedule=KernelSchedule.PINGPONG, swizzle=2)
    assert (config.compiled.operands, config.compiled.design) == (config.operands, config.design)


def test_the_changelog_counts_the_kernels_of_cutlass_in_default() -> None:
    (told,) = re.findall(r"`default` has (\d+) of CUTLASS's kernels", (ROOT / "CHANGELOG.md").read_text())
    assert int(told) == len(
        {config.compiled for config in select("default").configs if REGISTRY.kernels_of(config).tag == "cutlass"}
    )
