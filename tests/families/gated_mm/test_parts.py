"""Gated GEMMs that run their parts: when they are chosen, the variants that a build needs for them, and their rules."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from gemmill.families.gated_mm import NAME
from gemmill.families.gated_mm.classes import RESULTS, classes_of
from gemmill.families.gated_mm.config import (
    FINE_GROUP,
    GROUP,
    Activation,
    Epilogue,
    GatedConfig,
    GatedPartsConfig,
    GatedProductConfig,
    Operands,
    Result,
)
from gemmill.families.gated_mm.dsl.plan import ProductPlan
from gemmill.families.gated_mm.model import OWN_TILE, PLAIN
from gemmill.families.gated_mm.order import order_of
from gemmill.families.gated_mm.rules import PARTS_RULES, PRODUCT_RULES
from gemmill.families.gated_mm.selections import default, parts, products, sweep
from gemmill.families.gated_mm.tuning import TUNING, second_of
from gemmill.families.grouped_mm.selections import tiled as grouped_tiles
from gemmill.families.scaled_mm import selections as scaled_mm
from gemmill.family import EXACT, ShapedCall, first_rejection
from gemmill.runtime.invariance import Invariance
from gemmill.runtime.select import select
from gemmill.runtime.variant_table import make_variant_table
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Accumulation, Arch, DType, KernelSchedule

SMS = 132
E4M3, S8 = DType.E4M3, DType.S8
GEMMS = [x for x in scaled_mm.default(Arch.SM90A) if not x.operands.group_size and x.operands.out_dtype is DType.BF16]
GROUPED_GEMMS = [x for x in grouped_tiles(Arch.SM90A) if not x.group_size and x.out_dtype is DType.BF16]
MEASURED = [
    (E4M3, Result.GROUP, (4096, 28672, 4096, 0), False),
    (E4M3, Result.STATIC, (16, 28672, 4096, 0), False),
    (E4M3, Result.BF16, (4096, 28672, 4096, 0), False),
    (E4M3, Result.GROUP, (64, 73728, 7168, 0), True),
    (S8, Result.GROUP, (16, 57344, 8192, 0), True),
    (S8, Result.GROUP, (4096, 57344, 8192, 0), True),
    (E4M3, Result.GROUP, (2, 28672, 4096, 8), True),
    (E4M3, Result.GROUP, (8192, 28672, 4096, 8), True),
    (E4M3, Result.GROUP, (32768, 1536, 2048, 128), False),
    (E4M3, Result.BF16, (8192, 28672, 4096, 8), False),
]
"""Operands, result, (M, N, K, experts), and whether the two ops were faster by 4 % or more (H200, 2026-11-23 and 2026-11-27)."""


def choice_of(make_manifest, configs: list[Any], of: tuple[DType, Result, tuple[int, ...]]) -> Any:
    dtype, result, sizes = of
    entries = make_manifest(*dict.fromkeys(configs)).entries
    table = make_variant_table(entries, sorted({entry.symbol for entry in entries}), ())
    one = GatedPartsConfig(operands=Operands(dtype=dtype, by_expert=bool(sizes[3])), epilogue=Epilogue(result=result))
    number = classes_of(one)[[*Activation].index(Activation.SILU)]
    return select(table, ShapedCall(family=NAME, call_class=number, sizes=sizes, alignments=(16, 16, 16)), SMS)


@pytest.mark.parametrize(("dtype", "result", "sizes", "is_apart"), MEASURED)
def test_the_choice_is_what_measured_times_say(make_manifest, dtype, result, sizes, is_apart) -> None:
    configs = [*default(Arch.SM90A), *GEMMS, *GROUPED_GEMMS]
    choice = choice_of(make_manifest, configs, (dtype, result, sizes))
    assert isinstance(choice.entry.config, GatedPartsConfig) is is_apart, str(choice)


@pytest.mark.parametrize(("experts", "gemms"), [(0, GROUPED_GEMMS), (8, GEMMS)])
def test_a_build_without_the_gemms_never_runs_parts(make_manifest, experts: int, gemms: list[Any]) -> None:
    """GEMMs of experts' rows make no dense product, and the reverse."""
    choice = choice_of(make_manifest, [*default(Arch.SM90A), *gemms], (E4M3, Result.GROUP, (64, 73728, 7168, experts)))
    assert not isinstance(choice.entry.config, GatedPartsConfig)
    family = "grouped_mm" if experts else "scaled_mm"
    said = {rejected.name: rejected.reason for rejected in choice.trace}
    name = f"sm90a_gatedparts_e4m3_e4m3group128{'_experts' if experts else ''}"
    assert said[name] == f"it is quarantined: the build has no variant of {family} that it launches"


def test_names_needs_and_orders() -> None:
    found = list(parts(Arch.SM90A))
    assert len(found) == 12 and {x.epilogue.result for x in found} == set(RESULTS) and not list(parts(Arch.SM120F))
    for config in found:
        assert first_rejection(PARTS_RULES, config).ok and parse_name(to_name(config)) == config
        needs = TUNING.needs(config)
        assert needs is not None and needs.family == ("grouped_mm" if config.operands.by_expert else "scaled_mm")
        of_gemms = "grouped GEMMs to f32" if config.operands.by_expert else "plain GEMMs to f32"
        order = order_of(config)
        assert order == EXACT if config.operands.dtype is S8 else str(order) == of_gemms


@pytest.mark.parametrize("experts", [0, 8])
def test_gelu_of_experts_and_all_else_hold_an_order_for_few_rows_and_many(make_manifest, experts: int) -> None:
    """Parts alone serve GELU of experts' rows. What they launch holds an order of its own, for the same N and K."""
    entries = make_manifest(*dict.fromkeys([*default(Arch.SM90A), *GEMMS, *GROUPED_GEMMS])).entries
    table = make_variant_table(entries, sorted({entry.symbol for entry in entries}), ())
    invariance = Invariance(table, (), (), SMS)
    of = Operands(dtype=E4M3, by_expert=bool(experts))
    for result, (place, activation) in product((Result.BF16, Result.GROUP, Result.STATIC), enumerate(Activation)):
        number = classes_of(GatedPartsConfig(operands=of, epilogue=Epilogue(result=result)))[place]
        orders = set()
        for m in (1, 16, 300, 9000):
            call = ShapedCall(family=NAME, call_class=number, sizes=(m, 28672, 4096, experts), alignments=(16,) * 3)
            row, _, _ = invariance.choose(call, SMS)
            assert row >= 0, invariance.refusal(call)
            orders.add(invariance.order(row, call))
            if experts and activation is Activation.GELU:
                assert isinstance(table.entries[row].config, GatedPartsConfig)
                assert str(invariance.order(row, call)) == "grouped GEMMs to f32"
        assert len(orders) == 1 and None not in orders


@pytest.mark.parametrize(
    ("operands", "result", "reason"),
    [
        (
            Operands(dtype=E4M3, group_size=GROUP),
            Result.BF16,
            "scales in groups of 128: a plain GEMM has no blocks of gates and of ups, whose columns take turns",
        ),
        (
            Operands(dtype=E4M3, by_expert=True, indexed=True),
            Result.BF16,
            "gathered rows of experts: gemmill.grouped_mm_act_quant selects many of them first, give rows in order",
        ),
        (
            Operands(dtype=E4M3),
            Result.FINE_GROUP,
            "results in groups of 32 of operands in groups of 128: both have the same groups",
        ),
    ],
)
def test_rules(operands: Operands, result: Result, reason: str) -> None:
    config = GatedPartsConfig(operands=operands, epilogue=Epilogue(result=result))
    assert first_rejection(PARTS_RULES, config).reason == reason
    of_one = replace(
        config, operands=Operands(dtype=E4M3), epilogue=Epilogue(result=Result.BF16, activation=Activation.SILU)
    )
    assert first_rejection(PARTS_RULES, of_one).reason == "activation=silu: one kernel has all, None"


IN_GROUPS = [(16, 28672, 4096), (256, 28672, 4096), (4096, 28672, 4096)]
"""M, N and K at which the two ops took 0.99, 0.67 and 0.63 of the time of one launch to codes (H200, 2026-11-23, 8719654b)."""


@pytest.mark.parametrize("sizes", IN_GROUPS)
def test_products_in_groups_of_128_are_chosen_where_measured_times_say_so(make_manifest, sizes) -> None:
    entries = make_manifest(*sweep(Arch.SM90A)).entries
    table = make_variant_table(entries, sorted({entry.symbol for entry in entries}), ())
    call = ShapedCall(
        family=NAME, call_class=class_in_groups(GROUP, Result.GROUP), sizes=(*sizes, 0), alignments=(16, 16, 16)
    )
    choice = select(table, call, SMS)
    assert isinstance(choice.entry.config, GatedProductConfig if sizes[0] > 16 else GatedConfig | GatedProductConfig)


def class_in_groups(size: int, result: Result) -> int:
    config = next(x for x in products(Arch.SM90A) if (x.group_size, x.epilogue.result) == (size, result))
    return classes_of(config)[[*Activation].index(Activation.SILU)]


def test_a_build_serves_calls_in_groups_by_products_alone(make_manifest) -> None:
    """`default` has no other kernel of them, and none without the kernel that activates."""
    one = next(x for x in products(Arch.SM90A) if x.epilogue.result is Result.GROUP)
    call = ShapedCall(
        family=NAME, call_class=class_in_groups(GROUP, Result.GROUP), sizes=(5, 512, 256, 0), alignments=(16, 16, 16)
    )
    for configs, reason in (
        ((one, second_of(one)), None),
        ((one, *parts(Arch.SM120F)), "it is quarantined: the build has no variant"),
    ):
        entries = make_manifest(*configs).entries
        choice = select(make_variant_table(entries, sorted({x.symbol for x in entries}), ()), call, SMS)
        assert (choice.entry is None) is (reason is not None)
        assert reason is None or any(reason in rejected.reason for rejected in choice.trace)
    assert {(x.group_size, x.epilogue.result) for x in default(Arch.SM90A) if isinstance(x, GatedProductConfig)} == {
        (GROUP, Result.GROUP),
        (FINE_GROUP, Result.FINE_GROUP),
    }


def test_products_have_whole_pairs_of_blocks_and_know_who_activates_them() -> None:
    found = list(products(Arch.SM90A))
    assert len(found) == 24 and not list(products(Arch.SM120F))
    for config in found:
        assert first_rejection(PRODUCT_RULES, config).ok and parse_name(to_name(config)) == config
        plan, size = ProductPlan(config), config.group_size
        assert plan.promotion_k == size and plan.b_scales == (
            plan.tile_n if plan.swap_ab else max(2, plan.tile_n // size)
        )
        second = second_of(config)
        assert second.epilogue.result.dtype is config.epilogue.result.dtype and not second.group_size
        rows = list(TUNING.rows(config, 0))
        assert [row.facts.activates for row in rows] == classes_of(second) and len(rows) == len(Activation)
        assert {(row.facts.parts, row.facts.result_group) for row in rows} == {(OWN_TILE, config.epilogue.result.group)}
        assert {row.facts.parts for row in TUNING.rows(second, 0)} == {PLAIN}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"operands": Operands(dtype=E4M3)},
            "group_size=0, rows_scaled=False: a plain GEMM makes this product, of blocks in groups alone this one",
        ),
        (
            {"operands": Operands(dtype=E4M3, group_size=GROUP, by_expert=True)},
            "experts' rows: a product with scales in groups is of dense rows",
        ),
        (
            {"epilogue": Epilogue(result=Result.FINE_GROUP)},
            "results in groups of 32 of operands in groups of 128: both have the same groups",
        ),
        (
            {"epilogue": Epilogue(result=Result.GROUP, activation=Activation.SILU)},
            "activation=silu: the second kernel has all, None",
        ),
        ({"arch": Arch.SM120F}, "gated kernels are written for sm90a, not for sm120f"),
        (
            {"tile_shape_mnk": (64, 96, 128)},
            "tile of 96 columns: it crosses blocks of 128 gates and ups, whose pairs are 256 columns",
        ),
        (
            {"kernel_schedule": KernelSchedule.PINGPONG, "tile_shape_mnk": (64, 64, 128)},
            "pingpong with scales in groups: cooperative groups promote in turn",
        ),
        (
            {"accumulation": Accumulation.FAST},
            "scales in groups of 128 with fast sums: they are applied where sums are promoted",
        ),
    ],
)
def test_what_a_product_cannot_be_made_of(changes: dict[str, Any], reason: str) -> None:
    config = next(x for x in products(Arch.SM90A) if x.epilogue.result is Result.GROUP and not x.design.swap_ab)
    of_design = {name: value for name, value in changes.items() if hasattr(config.design, name)}
    others = {name: value for name, value in changes.items() if name not in of_design}
    config = replace(config, design=replace(config.design, **of_design), **others)
    assert first_rejection(PRODUCT_RULES, config).reason == reason
    with pytest.raises(ValueError, match=reason[:20]):
        ProductPlan(config)
