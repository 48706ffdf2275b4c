"""Variants of one order give a row of an expert the same bits, however many rows the expert has."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.families import fused_experts
from gemmill.families.fused_experts.cases.calls import ONE, CallSpec, arguments_of, make_given
from gemmill.families.fused_experts.classes import CLASSES
from gemmill.families.fused_experts.order import order_of
from gemmill.families.fused_experts.reference import GATE_UP, INTERLEAVED
from gemmill.manifest import KernelEntry

ROWS = (1, 7, 8, 9, 16, 17, 31, 64, 65, 96, 97, 130, 300)
"""Of one expert: within, at and beyond tiles, and where boxed tiles change the instruction (at 16, 32, 64 and 96)."""
SIZES = ((2048, 768), (1088, 2112))


def of_one_order() -> dict[tuple[int, str], list[KernelEntry]]:
    found: dict[tuple[int, str], list[KernelEntry]] = defaultdict(list)
    for entry in gemmill.variants() if torch.cuda.is_available() else ():
        if entry.family != fused_experts.NAME:
            continue
        if (order := order_of(entry.config)) is not None:
            found[CLASSES.number(entry.config), str(order)].append(entry)
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    kinds = of_one_order()
    metafunc.parametrize("variants", kinds.values(), ids=[entries[0].name for entries in kinds.values()])


def results(variant: KernelEntry, spec: CallSpec, made: dict[str, Any], rows: int) -> Tensor:
    """Of the first rows of the spec's tokens, all of one expert."""
    given = made | {name: made[name][:rows] for name in ("x", "topk_ids", "topk_weights")}
    out = torch.full((rows, spec.hidden), torch.nan, dtype=given["x"].dtype, device="cuda")
    # The products of grouped GEMMs are chosen anew for each number of rows.
    with gemmill.use_variant(variant.name), gemmill.batch_invariant(variant.config.apart):
        getattr(torch.ops.gemmill, spec.op).default(*arguments_of(given | {"out": out}))
    return out.view(torch.int16)


@pytest.mark.parametrize(("hidden", "inner"), SIZES)
@pytest.mark.parametrize("biased", [False, True])
def test_a_row_has_the_same_bits_in_each_variant_and_among_any_number_of_rows(
    variants: list[KernelEntry], hidden: int, inner: int, biased: bool
) -> None:
    config = variants[0].config
    inner -= inner % 128 if config.group_size else 0
    spec = CallSpec(tokens=ROWS[-1], hidden=hidden, inner=inner, weights=2, topk=1, routed=ONE, biased=biased)
    spec = replace(spec, dtype=config.dtype, out_dtype=config.out_dtype, group_size=config.group_size)
    spec = replace(spec, packing=config.packing, order=GATE_UP if config.packing is None else INTERLEAVED)
    made = make_given(spec, torch.device("cuda"))
    wanted = results(variants[0], spec, made, ROWS[-1])
    for variant in variants:
        for rows in ROWS:
            found = results(variant, spec, made, rows)
            same = (found == wanted[:rows]).all(dim=1)
            assert bool(same.all()), f"{variant.name}, {rows} rows: {int((~same).sum())} are others"
