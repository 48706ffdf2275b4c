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
    GatedPartsConfig,
    Operands,
    Result,
)
from gemmill.families.gated_mm.order import order_of
from gemmill.families.gated_mm.rules import PARTS_RULES
from gemmill.families.gated_mm.selections import default, parts
from gemmill.families.gated_mm.tuning import TUNING
from gemmill.families.grouped_mm.selections import tiled as grouped_tiles
from gemmill.families.scaled_mm import selections as scaled_mm
from gemmill.family import EXACT, ShapedCall, first_rejection
from gemmill.runtime.invariance import Invariance
from gemmill.runtime.select import select
from gemmill.runtime.variant_table import make_variant_table
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Arch, DType

SMS = 132
E4M3, S8 = DType.E4M3, DType.S8
GEMMS = [x for x in scaled_mm.default(Arch.SM90A) if not x.operands.group_size and x.operands.out_dtype is DType.BF16]
GROUPED_GEMMS = [x for x in grouped_tiles(Arch.SM90A) if not x.group_size and x.out_dtype is DType.BF16]
OF_BLOCKS = [
    *(x for x in scaled_mm.default(Arch.SM90A) if x.operands.group_size and x.operands.out_dtype is DType.BF16),
    *(x for x in grouped_tiles(Arch.SM90A) if x.group_size and x.out_dtype is DType.BF16),
]
"""GEMMs of operands in groups."""
MEASURED = [
    (E4M3, Result.GROUP, (4096, 28672, 4096, 0), False),
    (E4M3, Result.STATIC, (16, 28672, 4096, 0), False),
    (E4M3, Result.BF16, (4096, 28672, 4096, 0), False),
    (E4M3, Result.GROUP, (64, 73728, 7168, 0), True),
    (E4M3, Result.STATIC, (1, 28672, 4096, 0), False),
    (E4M3, Result.BF16, (16, 28672, 4096, 0), False),
    (E4M3, Result.BF16, (256, 28672, 4096, 0), True),
    (E4M3, Result.GROUP, (11, 9984, 1920, 0), False),
    (E4M3, Result.GROUP, (12, 11264, 4864, 0), False),
    (E4M3, Result.GROUP, (33, 15616, 2176, 0), True),
    (E4M3, Result.GROUP, (51, 13056, 2816, 0), True),
    (E4M3, Result.GROUP, (83, 56320, 1280, 0), False),
    (E4M3, Result.GROUP, (88, 7168, 3840, 0), True),
    (E4M3, Result.GROUP, (201, 2816, 15744, 0), True),
    (E4M3, Result.GROUP, (2134, 29184, 1536, 0), False),
    (S8, Result.GROUP, (16, 57344, 8192, 0), True),
    (S8, Result.GROUP, (4096, 57344, 8192, 0), True),
    (E4M3, Result.GROUP, (2, 28672, 4096, 8), True),
    (E4M3, Result.GROUP, (8192, 28672, 4096, 8), True),
    (E4M3, Result.GROUP, (32768, 1536, 2048, 128), False),
    (E4M3, Result.BF16, (8192, 28672, 4096, 8), False),
]
"""Operands, result, (M, N, K, experts), and whether the two ops were faster by 4 % or more (H200, 2026-11-23, 2026-11-27 and 2026-11-28)."""


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
    assert len(found) == 27 and {x.epilogue.result for x in found} == set(Result) and not list(parts(Arch.SM120F))
    for config in found:
        assert first_rejection(PARTS_RULES, config).ok and parse_name(to_name(config)) == config
        needs = TUNING.needs(config)
        assert needs is not None and needs.family == ("grouped_mm" if config.operands.by_expert else "scaled_mm")
        order = order_of(config)
        if config.operands.dtype is S8:
            assert order == EXACT
        else:
            assert str(order).startswith(f"{'grouped' if config.operands.by_expert else 'plain'} GEMMs to f32")


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
            Operands(dtype=E4M3, group_size=FINE_GROUP, rows_scaled=True, by_expert=True),
            Result.BF16,
            "scales of each row in groups of 32 of experts: no grouped GEMM of packed columns has them",
        ),
        (
            Operands(dtype=E4M3, by_expert=True, indexed=True),
            Result.BF16,
            "gathered rows of experts: gemmill.grouped_mm_act_quant selects many of them first, and all with scales of blocks",
        ),
        (
            Operands(dtype=E4M3),
            Result.FINE_GROUP,
            "results in groups of 32 of operands in groups of 128: both have the same groups",
        ),
        (
            Operands(dtype=E4M3, group_size=FINE_GROUP),
            Result.GROUP,
            "results in groups of 128 of operands in groups of 32: both have the same groups",
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


@pytest.mark.parametrize("by_expert", [False, True])
@pytest.mark.parametrize("group", [GROUP, FINE_GROUP])
def test_default_serves_calls_of_blocks_by_parts(make_manifest, group: int, by_expert: bool) -> None:
    """All results and activations, where the build has a GEMM of such scales, and with few rows and many."""
    for gemms, is_served in (((*GEMMS, *GROUPED_GEMMS), False), (OF_BLOCKS, True)):
        entries = make_manifest(*dict.fromkeys([*default(Arch.SM90A), *gemms])).entries
        table = make_variant_table(entries, sorted({entry.symbol for entry in entries}), ())
        wanted = [x for x in parts(Arch.SM90A) if (x.block, x.operands.by_expert) == (group, by_expert)]
        assert len(wanted) == len(RESULTS)
        for config, (m, number) in ((x, call) for x in wanted for call in product((1, 300), classes_of(x))):
            sizes = m, 512, 384, 4 if by_expert else 0
            call = ShapedCall(family=NAME, call_class=number, sizes=sizes, alignments=(16, 16, 16))
            choice = select(table, call, SMS)
            assert (choice.entry is not None and choice.entry.config == config) is is_served
