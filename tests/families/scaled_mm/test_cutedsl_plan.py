"""The compile-time facts of a DSL kernel, and the configs that it refuses."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gemmill.families.scaled_mm.config import Design, KernelConfig, Operands
from gemmill.families.scaled_mm.dsl.plan import Plan
from gemmill.families.scaled_mm.rules import RULES
from gemmill.family import Rule
from gemmill.gemm.limits import SHARED_BYTES
from gemmill.vocab import (
    Accumulation,
    Arch,
    Backend,
    DType,
    EpilogueKind,
    KernelSchedule,
    ScaleGranularity,
    ScaleLayout,
    TileScheduler,
)


def config(group_size: int = 0, arch: Arch = Arch.SM90A, **changes: Any) -> KernelConfig:
    """e4m3, 128x128x128, cooperative; `changes` are fields of Operands or Design."""
    operands: dict[str, Any] = {
        "a_dtype": DType.E4M3,
        "b_dtype": DType.E4M3,
        "accumulator_dtype": DType.F32,
        "out_dtype": DType.BF16,
    }
    if group_size:
        operands |= {
            "a_scale": ScaleGranularity.GROUP,
            "b_scale": ScaleGranularity.BLOCK,
            "scale_layout": ScaleLayout.STRIDED,
            "group_size": group_size,
        }
    schedule: dict[str, Any] = {
        "tile_shape_mnk": (128, 128, 128),
        "kernel_schedule": KernelSchedule.COOPERATIVE,
        "accumulation": Accumulation.PROMOTED if group_size else Accumulation.FAST,
    }
    for name, value in changes.items():
        (operands if name in Operands.__dataclass_fields__ else schedule)[name] = value
    return KernelConfig(
        operands=Operands(**operands),
        design=Design(**schedule),
        epilogue=EpilogueKind.SCALED_BIAS,
        arch=arch,
        backend=Backend.CUTEDSL,
    )


def test_stages_fill_shared_memory() -> None:
    plan = Plan(config())
    assert plan.stages == 6
    assert plan.shared_bytes <= SHARED_BYTES < plan.shared_bytes + plan.x_bytes + plan.y_bytes


def test_stages_of_the_config_are_kept() -> None:
    assert Plan(config(stages=3)).stages == 3


def test_swap_ab_puts_the_weights_into_the_rows() -> None:
    plan = Plan(config(tile_shape_mnk=(128, 32, 128), swap_ab=True, group_size=128))
    assert (plan.tile_m, plan.tile_n, plan.a_scales, plan.b_scales) == (32, 128, 32, 1)


@pytest.mark.parametrize(("tile_n", "blocks"), [(64, 1), (128, 1), (256, 2), (160, 2), (96, 2), (192, 2)])
def test_a_tile_has_room_for_the_scales_of_every_block_that_it_can_touch(tile_n: int, blocks: int) -> None:
    touched = max((n0 + tile_n - 1) // 128 - n0 // 128 + 1 for n0 in range(0, 128 * tile_n, tile_n))
    schedule = {"kernel_schedule": KernelSchedule.BASIC, "tile_shape_mnk": (64, tile_n, 128)}
    if tile_n == 256:
        schedule = {"tile_shape_mnk": (256, 64, 128), "swap_ab": True}
    assert Plan(config(group_size=128, **schedule)).b_scales == blocks == touched


def test_promoted_tiles_are_stored_at_one_go_where_three_stages_remain() -> None:
    promoted = {"accumulation": Accumulation.PROMOTED}
    whole = Plan(config(tile_shape_mnk=(256, 128, 128), **promoted))
    assert (whole.stages, whole.store_buffers, whole.slabs * whole.tile_y // whole.store_columns) == (3, 4, 4)
    assert Plan(config(tile_shape_mnk=(128, 128, 256), **promoted)).store_buffers == 1  # two stages and two boxes


def test_a_second_box_of_d_must_not_cost_a_stage() -> None:
    basic = {"tile_shape_mnk": (64, 256, 128), "kernel_schedule": KernelSchedule.BASIC}
    assert (Plan(config(**basic)).stages, Plan(config(**basic)).store_buffers) == (5, 2)
    wide = Plan(config(tile_shape_mnk=(128, 256, 128)))
    assert (wide.stages, wide.store_buffers) == (4, 1)


def test_small_tiles_keep_one_partial_sum_for_each_group() -> None:
    small = config(tile_shape_mnk=(64, 16, 512), kernel_schedule=KernelSchedule.BASIC, swap_ab=True, group_size=128)
    assert Plan(small).partials == 4
    assert Plan(config(group_size=64)).partials == 1


@pytest.mark.parametrize(
    ("tile", "changes", "partials", "by_turns"),
    [
        ((128, 128, 128), {}, 2, True),
        ((64, 128, 128), {}, 2, True),
        ((256, 128, 128), {}, 1, False),  # no registers for a second set
        ((128, 128, 128), {"b_scale": ScaleGranularity.GROUP}, 1, False),
        ((128, 96, 128), {"b_scale": ScaleGranularity.GROUP}, 2, True),
        ((64, 64, 128), {"swap_ab": True}, 2, True),
        ((64, 64, 128), {"swap_ab": True, "partial_sets": 4}, 4, True),
        ((256, 64, 128), {"partial_sets": 4}, 4, True),
        ((64, 16, 256), {"swap_ab": True}, 8, False),  # a set for each group of a stage
        ((64, 32, 256), {"swap_ab": True, "tile_scheduler": TileScheduler.SPLIT_K, "stages": 4}, 4, False),
    ],
)
def test_each_wgmma_of_a_group_of_32_has_partial_sums(
    tile: tuple[int, int, int], changes: dict[str, Any], partials: int, by_turns: bool
) -> None:
    schedule = KernelSchedule.BASIC if tile[0] == 64 else KernelSchedule.COOPERATIVE
    plan = Plan(config(group_size=32, tile_shape_mnk=tile, kernel_schedule=schedule, **changes))
    assert plan.promotes_each_mma
    assert (plan.partials, plan.alternates) == (partials, by_turns)
    assert plan.units % plan.partials == 0
    assert not (plan.overlapped or plan.factors_ahead)


@pytest.mark.parametrize(
    ("tile", "changes", "sets"),
    [
        ((64, 64, 128), {"swap_ab": True}, 2),
        ((64, 128, 128), {}, 2),
        ((128, 64, 128), {"swap_ab": True}, 2),
        ((64, 64, 128), {"swap_ab": True, "partial_sets": 4}, 2),
        ((256, 64, 128), {"partial_sets": 4}, 2),
        ((128, 96, 128), {"b_scale": ScaleGranularity.GROUP}, 2),
        ((128, 128, 128), {}, 1),  # 208 registers for sums and scales spill
    ],
)
def test_the_next_unit_s_scales_are_read_ahead_where_registers_are_left(
    tile: tuple[int, int, int], changes: dict[str, Any], sets: int
) -> None:
    schedule = KernelSchedule.BASIC if tile[0] == 64 else KernelSchedule.COOPERATIVE
    plan = Plan(config(group_size=32, tile_shape_mnk=tile, kernel_schedule=schedule, **changes))
    assert plan.alternates
    assert plan.factor_sets == sets


@pytest.mark.parametrize("group_size", [0, 64, 128])
def test_longer_groups_have_several_wgmmas(group_size: int) -> None:
    assert not Plan(config(group_size=group_size)).promotes_each_mma


def test_a_warp_of_weights_lies_in_one_block_of_32() -> None:
    plan = Plan(config(group_size=32, tile_shape_mnk=(128, 32, 128), swap_ab=True))
    assert (plan.b_scales, plan.a_scales, plan.blocks_aligned) == (4, 32, True)


@pytest.mark.parametrize(
    ("made_of", "sentence"),
    [
        (config(arch=Arch.SM100A), "the cutedsl backend is written for sm90a, not for sm100a"),
        (config(tile_shape_mnk=(256, 256, 128)), "tile 256x256 needs 256 accumulator registers a thread of 192"),
        (replace(config(), backend=Backend.CUTLASS), "backend cutlass: the DSL makes kernels of cutedsl"),
    ],
)
def test_what_the_kernel_cannot_be_made_of(made_of: KernelConfig, sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        Plan(made_of)
    assert str(error.value) == sentence


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_plan_is_refused_by_every_rule(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: KernelConfig) -> Iterator[str]:
        yield "it is refused"

    monkeypatch.setattr(Plan, "rules", tuple(refused if other is rule else other for other in RULES))
    with pytest.raises(ValueError, match="it is refused"):
        Plan(config())


def test_groups_that_promote_in_turn_store_a_slab_while_the_next_is_multiplied() -> None:
    in_turn = Plan(config(group_size=128, tile_shape_mnk=(256, 128, 128)))
    assert (in_turn.meets_end, in_turn.stores_early) == (True, True)
    one_slab = Plan(config(group_size=128))
    assert (one_slab.meets_end, one_slab.stores_early) == (True, False)


def test_a_slice_of_k_has_no_end_of_its_own() -> None:
    schedule = {"tile_shape_mnk": (64, 16, 128), "kernel_schedule": KernelSchedule.BASIC, "swap_ab": True, "stages": 4}
    plan = Plan(config(group_size=128, tile_scheduler=TileScheduler.SPLIT_K, **schedule))
    assert plan.factors_ahead
    assert not plan.meets_end


@pytest.mark.parametrize(("cluster", "sharers"), [((1, 1, 1), 1), ((2, 1, 1), 2), ((1, 4, 1), 4), ((2, 2, 1), 3)])
def test_a_cta_is_counted_once_among_those_that_share(cluster: tuple[int, int, int], sharers: int) -> None:
    assert Plan(config(cluster_shape_mnk=cluster)).sharers == sharers


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({"tile_shape_mnk": (64, 16, 256)}, 8),
        ({"tile_shape_mnk": (64, 32, 256)}, 8),
        ({"tile_shape_mnk": (64, 48, 128)}, 16),
        ({"tile_shape_mnk": (128, 128, 128)}, 16),
        ({"tile_shape_mnk": (128, 128, 128), "group_size": 128}, 16),
        ({"tile_shape_mnk": (128, 64, 128), "cluster_shape_mnk": (1, 2, 1)}, 0),
        ({"tile_shape_mnk": (64, 64, 128), "swap_ab": False}, 0),
    ],
)
def test_rows_of_a_are_loaded_in_boxes_that_divide_the_tile(changes: dict[str, Any], rows: int) -> None:
    """Where rows of A are the tile's columns, and no other CTA has part of the load."""
    plan = Plan(config(**({"swap_ab": True, "kernel_schedule": _schedule_of(changes)} | changes)))
    assert plan.box_rows == rows
    assert rows == 0 or plan.tile_m % rows == 0


def _schedule_of(changes: dict[str, Any]) -> KernelSchedule:
    return KernelSchedule.BASIC if changes["tile_shape_mnk"][0] == 64 else KernelSchedule.COOPERATIVE
