"""The orders of fused experts, as fields of configs tell them."""

from collections import defaultdict

import pytest

from gemmill.families.fused_experts.config import PackedExpertsConfig
from gemmill.families.fused_experts.order import order_of
from gemmill.families.fused_experts.selections import plain, sweep
from gemmill.family import ShapedCall
from gemmill.manifest import KernelEntry
from gemmill.registry import REGISTRY
from gemmill.runtime.invariance import Invariance
from gemmill.runtime.variant_table import make_variant_table
from gemmill.space.names import symbol_of, to_name
from gemmill.vocab import Arch

PACKED = [config for config in sweep(Arch.SM90A) if isinstance(config, PackedExpertsConfig)]


def test_tiles_of_streamed_weights_have_one_order_and_slices_by_the_number_of_tokens_none() -> None:
    found = defaultdict(set)
    for config in plain(Arch.SM90A):  # grouped GEMMs of bf16 and of e4m3 are of different classes
        found[config.streamed, config.apart, config.group_size].add(str(order_of(config)))
    assert found == {
        (True, False, 128): {"grouped GEMMs to f32, promoted every 128, experts added as bf16"},
        (False, True, 128): {"grouped GEMMs to f32, promoted every 128, experts added as bf16"},
        (False, True, 32): {"grouped GEMMs to f32, promoted every 32, experts added as bf16"},
        (False, True, 0): {"grouped GEMMs to f32, experts added as bf16"},
        (False, False, 128): {"None"},
        (False, False, 0): {"None"},
    }


def test_packed_tiles_have_one_order_without_codes_and_one_with_them() -> None:
    found = defaultdict(set)
    for config in PACKED:
        found[config.is_coded].add(str(order_of(config)))
    assert found == {
        False: {"mma.sync to f32, a warp along all of K"},
        True: {"wgmma to f32, experts added as bf16"},
    }


@pytest.mark.parametrize("inner, hidden, experts", [(768, 2048, 128), (2048, 7168, 32)])
def test_a_layer_holds_one_order_for_all_numbers_of_tokens_and_multiprocessors(inner, hidden, experts) -> None:
    entries = [
        KernelEntry(name=to_name(c), family=family, config=c, symbol=symbol_of(c), ops=REGISTRY.ops_of(c))
        for family in ("fused_experts", "grouped_mm")
        for c in dict.fromkeys(REGISTRY.named(family).selections["default"](Arch.SM90A))
    ]
    table = make_variant_table(entries, sorted({entry.symbol for entry in entries}), ())
    invariance = Invariance(table, (), (), 132)
    for number in {row.call_class for _, row, _ in table.of("fused_experts")}:
        calls = [
            ShapedCall(
                family="fused_experts", call_class=number, sizes=(pairs, inner, hidden, experts), alignments=(16,) * 3
            )
            for pairs in (1, 16, 300, 40_000)
        ]
        rows = [invariance.choose(call, sm_count)[0] for call in calls for sm_count in (132, 78, 264)]
        held = invariance.held(calls[-1])
        assert held is not None and {invariance.order(row, calls[0]) for row in rows} == {held.order}
