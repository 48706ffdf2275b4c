"""Layers whose products are grouped GEMMs: when they are chosen, their variants' needs of a build, and the bounds of their results."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gemmill.families.fused_experts import bounds, reference
from gemmill.families.fused_experts.cases.calls import CallSpec, make_given
from gemmill.families.fused_experts.cases.checked import of_config
from gemmill.families.fused_experts.config import APART_TILE, CODED, FINE_GROUP, GROUP, Design, ExpertsConfig, Operands
from gemmill.families.fused_experts.rules import RULES
from gemmill.families.fused_experts.selections import plain
from gemmill.families.fused_experts.serving import layer_of
from gemmill.families.fused_experts.tuning import TUNING
from gemmill.families.grouped_mm.selections import biased, tiled
from gemmill.family import Row, ShapedCall, first_rejection
from gemmill.runtime.select import select
from gemmill.runtime.variant_table import make_variant_table
from gemmill.vocab import Arch, DType

SMS = 132
BF16 = DType.BF16
KINDS = [(CODED, GROUP, 1024), (CODED, 0, 64), (BF16, 0, 64)]
"""Weights, scales, and tokens of Qwen3-30B-A3B from which on grouped GEMMs are expected to be faster: others of rows, and of bf16, are by warps."""


def configs(group: int, dtype: DType = CODED) -> list[ExpertsConfig]:
    operands = Operands(dtype=dtype, out_dtype=BF16, group_size=group)
    return [c for c in plain(Arch.SM90A) if c.operands == operands]


def call_of(row: Row, tokens: int) -> ShapedCall:
    sizes = (tokens * 8, 768, 2048, 128)
    return ShapedCall(family="fused_experts", call_class=row.call_class, sizes=sizes, alignments=(16, 16, 16))


def test_groups_of_32_are_grouped_gemms_for_any_rows(make_manifest) -> None:
    """Those of blocks alone: the same sizes of groups with scales of rows do not make the variant complete."""
    own = [config for config in configs(FINE_GROUP) if config.apart]
    gemms = [c for c in tiled(Arch.SM90A) if c.group_size == FINE_GROUP]
    for rows_scaled in (False, True):
        entries = make_manifest(*own, *(c for c in gemms if c.rows_scaled is rows_scaled)).entries
        table = make_variant_table(entries, sorted({entry.symbol for entry in entries}), ())
        (_, row, _), *_ = table.of("fused_experts")
        for tokens in (1, 64, 4096):
            assert (select(table, call_of(row, tokens), SMS).entry is None) is rows_scaled


@pytest.mark.parametrize(("dtype", "group", "many"), KINDS)
def test_experts_with_many_rows_choose_grouped_gemms(make_manifest, dtype: DType, group: int, many: int) -> None:
    gemms = [c for c in tiled(Arch.SM90A) if c.operand_dtype is dtype and c.group_size == group]
    entries = make_manifest(*configs(group, dtype), *gemms).entries
    table = make_variant_table(entries, sorted({entry.symbol for entry in entries}), ())
    (_, row, _), *_ = table.of("fused_experts")
    for tokens, apart in ((1, False), (4, False), (many, True), (8192, True)):
        choice = select(table, call_of(row, tokens), SMS)
        assert choice.entry is not None and choice.entry.config.apart is apart, (tokens, str(choice))


@pytest.mark.parametrize("group", [GROUP, 0])
def test_a_build_without_the_grouped_gemms_never_chooses_them(make_manifest, group: int) -> None:
    """Neither those of other scales, nor of gathered rows, nor with a bias serve."""
    others = [c for c in tiled(Arch.SM90A) if c.group_size != group or True in c.gathers]
    others += [c for c in biased(Arch.SM90A) if c.group_size == group]
    entries = make_manifest(*configs(group), *others).entries
    table = make_variant_table(entries, sorted({entry.symbol for entry in entries}), ())
    (_, row, _), *_ = table.of("fused_experts")
    choice = select(table, call_of(row, 8192), SMS)
    assert choice.entry is not None and not choice.entry.config.apart
    said = {rejected.name: rejected.reason for rejected in choice.trace}
    (name,) = (entry.name for entry in entries if getattr(entry.config, "apart", False))
    assert said[name] == "it is quarantined: the build has no variant of grouped_mm that it launches"


def test_rules_and_contradictions_are_told() -> None:
    (config,) = (c for c in configs(GROUP) if c.apart)
    fine = replace(config, operands=replace(config.operands, group_size=FINE_GROUP), design=Design(tile_tokens=8))
    assert first_rejection(RULES, fine).reason == "scales in groups of 32: grouped GEMMs multiply them (apart=True)"
    with pytest.raises(ValueError, match=r"^group_size=64: scales are of 128 or 32, or 0 for whole rows$"):
        replace(config.operands, group_size=64)
    narrow = replace(config, design=Design(tile_tokens=64, apart=True))
    assert first_rejection(RULES, narrow).reason == "apart tile of 64 rows: there are 128"
    with pytest.raises(ValueError, match=r"^streamed=True, apart=True: grouped GEMMs stream weights, or kernels of"):
        replace(config.design, streamed=True)


def product(layer: reference.Layer, rows: Tensor, weights: Tensor, scales: Tensor | None, expert: int) -> Tensor:
    if scales is None:
        return rows.to(layer.x.dtype).float() @ weights.float().t()
    codes, of_rows = reference.coded(rows, layer.group)
    return reference.products(codes, weights, of_rows, scales[expert], layer.group)


def by_parts(layer: reference.Layer) -> Tensor:
    """As the launches compute it: both products are rounded to x's dtype before bias and weight."""
    dtype, total = layer.x.dtype, torch.zeros(*layer.topk_ids.shape, layer.x.shape[1])
    for rows in reference.rows_of(layer):
        x, e = layer.x[rows.tokens], rows.weights
        inner = product(layer, x.float(), layer.w13[e], layer.w13_scales, e).to(dtype).float()
        inner = reference.ended(inner, layer.w13_bias, layer, rows, weighted=layer.weight_on_input).to(dtype).float()
        values = reference.activated(*layer.gate_and_up(inner), layer.activation, *layer.numbers)
        part = product(layer, values, layer.w2[e], layer.w2_scales, e).to(dtype).float()
        part = reference.ended(part, layer.w2_bias, layer, rows, weighted=not layer.weight_on_input)
        total[rows.tokens, rows.slots] = part
    return total.sum(dim=1).to(dtype)


ONE = CallSpec(tokens=24, hidden=256, inner=128, weights=3, topk=1, group_size=GROUP, routed="one")


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"group_size": 0},
        {"group_size": FINE_GROUP},
        {"biased": True},
        {"biased": True, "weight_on_input": True},
        {"dtype": BF16, "group_size": 0},
    ],
)
def test_rounded_products_are_within_the_bound_and_not_within_that_of_fused_kernels(changed) -> None:
    layer = layer_of(make_given(replace(ONE, **changed), torch.device("cpu")))
    found = by_parts(layer).double()

    def far(fused: bool) -> bool:
        wanted = bounds.judged(replace(layer, by_warps=fused, fused=fused), None, exactly=False)
        return bool(((found - wanted.exact).abs() > wanted.bound).any())

    assert not far(fused=False) and far(fused=True)


def test_cases_of_both_ways_are_judged_by_their_own_bounds() -> None:
    for config in [*configs(GROUP), *configs(FINE_GROUP), *configs(0, BF16)]:
        specs = [case.spec for case in of_config(config)]
        assert {spec.fused for spec in specs} == {not (config.apart or config.streamed)}
        assert {spec.by_warps for spec in specs} == {not (config.apart or config.streamed)}
    (config,) = (c for c in configs(GROUP) if c.apart)
    assert any(case.spec.tokens > APART_TILE for case in of_config(config))
    assert TUNING.needs(config) is not None and TUNING.needs(configs(GROUP)[0]) is None
