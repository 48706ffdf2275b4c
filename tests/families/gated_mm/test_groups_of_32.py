"""Gated GEMMs of groups of 32: blocks and rows of weights, and results in groups of 32."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import gemmill
from families.gated_mm.test_gated_mm import IN_GROUPS, call, given
from gemmill.families.gated_mm.config import (
    Result,
)
from gemmill.families.gated_mm.dsl.plan import Plan
from gemmill.families.gated_mm.rules import RULES
from gemmill.families.gated_mm.selections import in_fine_groups
from gemmill.family import first_rejection
from gemmill.formats.gate_up import unpack_gate_up
from gemmill.quantize import prepack_gate_up
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Arch, KernelSchedule
from making import changed


@pytest.mark.parametrize("rows_scaled", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_operands_in_groups_of_32_give_what_the_two_ops_give(transposed: bool, rows_scaled: bool) -> None:
    """Codes, and a scale for each 32 of a row."""
    changes: dict[str, Any] = {"group_size": 32, "rows_scaled": rows_scaled, "transposed": transposed}
    x = given(replace(IN_GROUPS, result=Result.FINE_GROUP, m=33, hidden=192, k=200, **changes))
    weights, of_weights = x["b"].t(), x["b_scales"].t()
    parts = unpack_gate_up(of_weights) if rows_scaled else (of_weights[0::2], of_weights[1::2])
    products = [
        gemmill.cutlass_scaled_mm(x["a"], part.t(), x["a_scales"], scales.t().contiguous(), torch.bfloat16)
        for part, scales in zip(unpack_gate_up(weights, 0 if rows_scaled else 32), parts, strict=True)
    ]
    wanted, scales = gemmill.silu_and_mul_per_block_quant(torch.cat(products, dim=1).contiguous(), 32)
    assert torch.equal(call(x).view(torch.uint8), wanted.view(torch.uint8))
    assert torch.equal(x["out_scales"], scales) and scales.shape == (33, 6)
    swapped = x | {"b_scales": x["b_scales"].flip(1), "out": torch.zeros_like(x["out"])}
    assert not torch.equal(call(swapped).view(torch.uint8), wanted.view(torch.uint8)), (
        "the data shows whose scales they are"
    )


def test_kernels_of_groups_of_32() -> None:
    found = list(in_fine_groups(Arch.SM90A))
    assert not list(in_fine_groups(Arch.SM100A))
    assert {(x.rows_scaled, x.operands.by_expert, x.operands.indexed, x.design.swap_ab) for x in found} == {
        (True, by_expert, indexed, True) for by_expert, indexed in ((False, False), (True, False), (True, True))
    }
    for config in found:
        assert first_rejection(RULES, config).ok and parse_name(to_name(config)) == config
        plan = Plan(config)
        assert plan.promotions == plan.mma_steps and plan.promotion_k == 32
        assert plan.b_scales == plan.tile_n


def test_what_a_kernel_of_groups_of_32_cannot_be_made_of() -> None:
    config = next(x for x in in_fine_groups(Arch.SM90A) if x.epilogue.result is Result.FINE_GROUP)
    with pytest.raises(ValueError) as error:
        Plan(changed(config, tile_shape_mnk=(128, 64, 128), kernel_schedule=KernelSchedule.BASIC))
    assert str(error.value) == (
        "tile (128, 64, 128) has 64 results of a row, 64 of them in a box: a scale belongs to 32 of one tile"
    )
    with pytest.raises(ValueError, match=r"^results in groups of 128 of operands in groups of 32: both have the same"):
        Plan(replace(config, epilogue=replace(config.epilogue, result=Result.GROUP)))
    with pytest.raises(ValueError, match=r"^rows_scaled=True contradicts group_size=128: gates and ups have scales"):
        replace(config.operands, group_size=128, rows_scaled=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"a_scales": torch.ones(5, 4)},
            "a_scales has shape [5, 4], expected [5, 13]: a scale of each row for each 32 along K, as b_scales of [13, 16] has them",
        ),
        (
            {"out_scales": torch.ones(5, 2)},
            "out_scales has shape [5, 2], expected [5, 8]: a scale for each 32 of a row; for one of a whole row store bfloat16, and "
            "quantise that",
        ),
        (
            {
                "b": torch.zeros(480, 400).to(torch.float8_e4m3fn).t(),
                "out": torch.zeros(5, 240).to(torch.float8_e4m3fn),
            },
            "b is [400, 480], 240 results: blocks of 32 gates and of 32 ups are whole, pad the weights with zeros",
        ),
    ],
)
def test_groups_of_32_that_do_not_fit_are_told_why(changes: dict[str, Any], said: str) -> None:
    spec = replace(IN_GROUPS, result=Result.FINE_GROUP, group_size=32)
    with pytest.raises(RuntimeError) as error:
        call(given(spec) | changes)
    assert str(error.value) == f"scaled_mm_act_quant: {said}"


@pytest.mark.parametrize("order", ["gate_up", "up_gate"])
def test_scales_of_rows_in_groups_follow_their_rows(order: str) -> None:
    weights, scales = torch.randn(64, 96).to(torch.float8_e4m3fn), torch.rand(64, 3)
    packed = prepack_gate_up(weights, scales, order)
    assert packed.scales.shape == (3, 64) and packed.scales.is_contiguous()
    scaled = packed.weights.float() * packed.scales.t().repeat_interleave(32, dim=1)
    gate, up = (weights.float() * scales.repeat_interleave(32, dim=1)).chunk(2)
    for found, wanted in zip(unpack_gate_up(scaled), (gate, up) if order == "gate_up" else (up, gate), strict=True):
        assert torch.equal(found, wanted)
    of_blocks = prepack_gate_up(weights, torch.tensor([[1.0, 2, 3], [4, 5, 6]]), order).scales
    assert of_blocks.tolist() == ([[1, 4], [2, 5], [3, 6]] if order == "gate_up" else [[4, 1], [5, 2], [6, 3]])
