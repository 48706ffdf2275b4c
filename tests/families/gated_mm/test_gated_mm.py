"""Gated GEMMs on CPU tensors: the reference, packing, sentences for bad input, bounds, rules, names and the choice."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.families.gated_mm import bounds, reference
from gemmill.families.gated_mm.cases.asked import asked
from gemmill.families.gated_mm.cases.calls import (
    NEUTRAL,
    CallSpec,
    arguments_of,
    groups_of,
    make_given,
    report_of,
    wrong_of,
)
from gemmill.families.gated_mm.cases.checked import OF_SWIGLU, GatedCase, of_config
from gemmill.families.gated_mm.classes import RESULTS, classes_of
from gemmill.families.gated_mm.config import (
    Activation,
    AnyConfig,
    Epilogue,
    GatedConfig,
    GatedPartsConfig,
    Operands,
    Result,
    UnalignedGatedConfig,
)
from gemmill.families.gated_mm.dsl.plan import Plan
from gemmill.families.gated_mm.ops import SCALED_MM_ACT_QUANT
from gemmill.families.gated_mm.rules import PARTS_RULES, RULES, UNALIGNED_RULES
from gemmill.families.gated_mm.selections import default, in_fine_groups, of_int8, parts, smoke, sweep
from gemmill.family import first_rejection
from gemmill.formats.gate_up import ORDERS, pack_gate_up, packed_rows, unpack_gate_up
from gemmill.gemm.config import Design
from gemmill.quantize import prepack_gate_up
from gemmill.registry import REGISTRY
from gemmill.runtime.checks import check
from gemmill.runtime.operands import of_arguments
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Accumulation, Arch, DType, KernelSchedule
from making import changed

BF16 = CallSpec(m=5, hidden=256, k=160, result=Result.BF16)
GROUPS = replace(BF16, result=Result.GROUP)
STATIC = replace(BF16, result=Result.STATIC)
IN_GROUPS = replace(BF16, group_size=128, k=400)
INT8 = replace(BF16, dtype=DType.S8)
SWIGLU = replace(BF16, activation=Activation.SWIGLU, numbers=OF_SWIGLU)
MANY = GatedConfig(
    operands=Operands(dtype=DType.E4M3),
    design=Design(
        tile_shape_mnk=(128, 256, 128), kernel_schedule=KernelSchedule.COOPERATIVE, accumulation=Accumulation.FAST
    ),
    epilogue=Epilogue(result=Result.GROUP, activation=Activation.SILU),
)


OF_BLOCKS = [x for x in parts(Arch.SM90A) if x.block and x.epilogue.result in (Result.BF16, Result.FINE_GROUP)][::2]
FEW_OF_INT8 = [x for x in of_int8(Arch.SM90A) if x.epilogue.result is Result.GROUP and not x.operands.by_expert][1::3]


def given(p: CallSpec) -> dict[str, Any]:
    out = torch.zeros(p.m, p.hidden).to(getattr(torch, p.result.dtype.torch_name))
    scales = torch.full((p.m, groups_of(p)), torch.nan) if p.result.group else None
    return make_given(p, torch.device("cpu")) | {"out": out, "out_scales": scales}


def call(arguments: dict[str, Any]) -> Tensor:
    torch.ops.gemmill.scaled_mm_act_quant.default(*arguments_of(arguments))
    out: Tensor = arguments["out"]
    return out


def test_scales_per_token_are_those_of_the_op_after_it() -> None:
    x = given(BF16)
    operands = [x[name] for name in ("a", "b", "a_scales", "b_scales")]
    hidden, none = gemmill.scaled_mm_act_quant(*operands)
    codes, scales = gemmill.scaled_mm_act_quant(*operands, per_token=True)
    expected, expected_scales = gemmill.dynamic_per_token_scaled_fp8_quant(hidden)
    assert none is None and scales is not None and scales.shape == (BF16.m, 1)
    assert torch.equal(codes.view(torch.uint8), expected.view(torch.uint8)) and torch.equal(scales, expected_scales)
    assert codes.view(torch.uint8).unique().numel() > 8, "the data shows it"


@pytest.mark.parametrize("other", [{"static_scale": torch.ones(1)}, {"group_size": 128}])
def test_scales_of_two_kinds_are_refused(other: dict[str, Any]) -> None:
    x = given(BF16)
    with pytest.raises(
        ValueError, match=r"^(static_scale|group_size) and per_token are given: results are coded by one kind"
    ):
        gemmill.scaled_mm_act_quant(x["a"], x["b"], x["a_scales"], x["b_scales"], per_token=True, **other)


def plain(x: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Gate and up of the product in bf16."""
    product = gemmill.cutlass_scaled_mm(x["a"], x["b"], x["a_scales"], x["b_scales"], torch.bfloat16)
    gate, up = unpack_gate_up(product.t())
    return gate.t(), up.t()


# The two ops one after the other --------------------------------------------------------------------------------------


def test_codes_in_groups_are_those_of_the_two_ops() -> None:
    x = given(replace(GROUPS, m=33))
    out = call(x)
    codes, scales = gemmill.silu_and_mul_per_block_quant(torch.cat(plain(x), dim=1).contiguous(), 128)
    assert torch.equal(out.view(torch.uint8), codes.view(torch.uint8))
    assert torch.equal(x["out_scales"], scales)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("hidden", [256, 384])
def test_operands_in_groups_give_what_the_two_ops_give(hidden: int, transposed: bool) -> None:
    x = given(replace(IN_GROUPS, result=Result.STATIC, m=33, hidden=hidden, transposed=transposed))
    of_gates, of_ups = x["b_scales"][:, 0::2], x["b_scales"][:, 1::2]
    products = [
        gemmill.cutlass_scaled_mm(x["a"], part.t(), x["a_scales"], scales.contiguous(), torch.bfloat16)
        for part, scales in zip(unpack_gate_up(x["b"].t(), 128), (of_gates, of_ups), strict=True)
    ]
    whole = gemmill.cutlass_scaled_mm(x["a"], x["b"], x["a_scales"], x["b_scales"].contiguous(), torch.bfloat16)
    of_whole = unpack_gate_up(whole.t(), 128)
    assert all(torch.equal(found.t(), part) for found, part in zip(of_whole, products, strict=True)), (
        "a plain GEMM takes b"
    )
    wanted = gemmill.silu_and_mul_quant(torch.cat(products, dim=1).contiguous(), x["static_scale"]).view(torch.uint8)
    assert torch.equal(call(x).view(torch.uint8), wanted)
    swapped = x | {"b_scales": torch.stack((of_ups, of_gates), dim=2).flatten(1), "out": torch.zeros_like(x["out"])}
    assert not torch.equal(call(swapped).view(torch.uint8), wanted), "the data shows whose scales they are"


def test_codes_by_a_given_scale_are_those_of_the_two_ops() -> None:
    x = given(STATIC)
    wanted = gemmill.silu_and_mul_quant(torch.cat(plain(x), dim=1).contiguous(), x["static_scale"])
    assert torch.equal(call(x).view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("result", RESULTS)
def test_results_of_int8_are_those_of_the_two_ops(result: Result) -> None:
    x = given(replace(INT8, result=result, m=33))
    assert x["a"].dtype is x["b"].dtype is torch.int8
    out, both = call(x), torch.cat(plain(x), dim=1).contiguous()
    if result is Result.GROUP:
        wanted, scales = gemmill.silu_and_mul_per_block_quant(both, 128)
        assert torch.equal(x["out_scales"], scales)
    elif result is Result.STATIC:
        wanted = gemmill.silu_and_mul_quant(both, x["static_scale"])
    else:
        gate, up = both.float().chunk(2, dim=1)
        wanted = reference.activated(gate, up, Activation.SILU, *NEUTRAL).bfloat16()
    assert torch.equal(out.view(torch.uint8), wanted.view(torch.uint8))
    assert out.view(torch.uint8).unique().numel() > 8, "the data shows it"


def test_sums_of_int8_are_converted_once() -> None:
    x = given(replace(INT8, m=1, k=2048)) | {"a_scales": torch.ones(1), "b_scales": torch.ones(1)}
    x["a"].fill_(127)
    x["b"].fill_(127)
    x["b"][0] = 126
    total = 127 * 127 * 2048 - 127
    rounded = torch.tensor(total).float()
    assert int(rounded) != total, "the sum has more bits than float32"
    assert torch.equal(reference.exact_mm(x["a"], x["b"])[0, :1].float(), rounded.reshape(1))
    assert int(reference.exact_mm(x["a"], x["b"])[0, 0]) == total


@pytest.mark.parametrize("activation", Activation)
def test_results_are_the_activation_of_gate_times_up(activation: Activation) -> None:
    x = given(replace(SWIGLU if activation is Activation.SWIGLU else BF16, activation=activation))
    gate, up = (part.double() for part in plain(x))
    match activation:
        case Activation.SILU:
            wanted = torch.nn.functional.silu(gate) * up
        case Activation.SWIGLU:
            gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
            wanted = gate * torch.sigmoid(1.702 * gate) * (up + 1.0)
        case _:
            approximate = "tanh" if activation is Activation.GELU_TANH else "none"
            wanted = torch.nn.functional.gelu(gate, approximate=approximate) * up
    assert torch.allclose(call(x).double(), wanted, rtol=2**-8, atol=1e-5)


def test_a_gate_whose_sigmoid_is_no_normal_number() -> None:
    gate = torch.tensor([-87.0, -87.5, -88.5, -90.0, -math.inf, math.nan, math.inf])
    value = reference.activated(gate, torch.full_like(gate, 1e30), Activation.SILU, 1.0, math.inf, 0.0)
    exact = gate.double() / (1 + torch.exp(-gate.double())) * 1e30
    assert torch.allclose(value[:3].double(), exact[:3], rtol=1e-5)
    assert value[3] == 0 and bool(value[4:6].isnan().all()) and value[6] == math.inf


# Packing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_weights_of_every_order_give_the_same(order: str) -> None:
    gate, up = torch.randn(64, 32), torch.randn(64, 32)
    given = {
        "gate_up": torch.cat((gate, up)),
        "up_gate": torch.cat((up, gate)),
        "interleaved": torch.stack((gate, up), dim=1).flatten(0, 1),
    }[order]
    packed = prepack_gate_up(given.to(torch.float8_e4m3fn), given[:, 0], order)
    assert packed.order == order and packed.hidden == 64 and packed.b.shape == (32, 128)
    for found, wanted in zip(unpack_gate_up(packed.weights), (gate, up), strict=True):
        assert torch.equal(found.float(), wanted.to(torch.float8_e4m3fn).float())
    for found, wanted in zip(unpack_gate_up(packed.scales), (gate, up), strict=True):
        assert torch.equal(found, wanted[:, 0])


def test_four_results_beside_one_another_are_of_one_thread() -> None:
    gate, up = packed_rows(64)
    for result in range(64):
        lane = result % 16 // 4
        for row in (int(gate[result]), int(up[result])):
            assert row // 32 == result // 16 and row % 8 // 2 == lane
    assert torch.equal(torch.cat((gate, up)).sort().values, torch.arange(128))


@pytest.mark.parametrize("order", ["gate_up", "up_gate"])
def test_scales_of_blocks_go_with_their_gates_and_ups(order: str) -> None:
    hidden, k = 256, 320
    scales = torch.rand(4, 3)
    weights = torch.randn(2 * hidden, k).to(torch.float8_e4m3fn)
    packed = prepack_gate_up(weights, scales, order)
    assert packed.scales.shape == (3, 4)
    of_rows = packed.scales.t().repeat_interleave(128, dim=0)
    scaled = packed.weights.float() * of_rows.repeat_interleave(128, dim=1)[:, :k]
    whole = weights.float() * scales.repeat_interleave(128, dim=0).repeat_interleave(128, dim=1)[:, :k]
    gate, up = whole.chunk(2) if order == "gate_up" else whole.chunk(2)[::-1]
    for found, wanted in zip(unpack_gate_up(scaled, 128), (gate, up), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("weights", "scales", "order", "said"),
    [
        (
            (64, 8),
            (64,),
            "gate_first",
            "gates and ups in order 'gate_first', expected one of gate_up, up_gate, interleaved",
        ),
        (
            (48, 8),
            (48,),
            "gate_up",
            "weights have shape [48, 8]: gates and ups are [2 hidden, K], packed in blocks of 32 rows",
        ),
        (
            (64, 8),
            (32,),
            "gate_up",
            "scales have shape [32]: expected one value, one for each of 64 rows, [64, 1] of rows in groups of 32, or of blocks of gates "
            "or ups [2, 1] (128) or [2, 1] (32)",
        ),
        (
            (512, 256),
            (4, 2),
            "interleaved",
            "4 scales of blocks in order 'interleaved': each belongs to gates or to ups alone",
        ),
        (
            (320, 256),
            (4, 2),
            "gate_up",
            "weights have shape [320, 256], 160 gates: scales of [4, 2] are of 128 gates or ups, pad both to a multiple of 128 with zeros",
        ),
    ],
)
def test_weights_that_cannot_be_packed(weights: Any, scales: Any, order: str, said: str) -> None:
    with pytest.raises(ValueError) as error:
        prepack_gate_up(torch.zeros(weights), torch.zeros(scales), order)
    assert str(error.value) == said


def test_rows_are_packed_in_blocks() -> None:
    with pytest.raises(ValueError) as error:
        pack_gate_up(torch.zeros(40, 2), "gate_up")
    assert str(error.value) == "40 rows of gates and ups: they are packed in blocks of 32"
    gate, up = packed_rows(256, block=128)
    assert gate.tolist() == [*range(128), *range(256, 384)] and torch.equal(up, gate + 128)


# The function ---------------------------------------------------------------------------------------------------------


def test_functions_allocate() -> None:
    x = given(BF16)
    operands = [x[name] for name in ("a", "b", "a_scales", "b_scales")]
    out, scales = gemmill.scaled_mm_act_quant(*operands)
    assert out.dtype is torch.bfloat16 and out.shape == (5, 256) and scales is None
    out, scales = gemmill.scaled_mm_act_quant(*operands, group_size=128)
    assert out.dtype is torch.float8_e4m3fn and scales is not None and scales.shape == (5, 2)
    out, scales = gemmill.scaled_mm_act_quant(*operands, static_scale=torch.ones(1))
    assert out.dtype is torch.float8_e4m3fn and scales is None
    with pytest.raises(ValueError) as error:
        gemmill.scaled_mm_act_quant(*operands, group_size=64)
    assert str(error.value) == "group_size is 64, expected 128 or 32, or None for no scales of groups"


SENTENCES = {
    "activation": (
        BF16,
        {"activation": "relu"},
        "activation is 'relu', expected 'silu', 'gelu', 'gelu_tanh' or 'swiglu'",
    ),
    "numbers of silu": (
        BF16,
        {"alpha": 1.702},
        "alpha, limit, beta = 1.702, inf, 0.0 with activation 'silu': only 'swiglu' has them, else they are 1, inf, 0",
    ),
    "limit": (SWIGLU, {"limit": -1.0}, "limit is -1.0, expected a number above 0, or inf for none"),
    "weights that are not packed": (
        BF16,
        {"b": torch.zeros(40, 160).to(torch.float8_e4m3fn).t()},
        "b is [160, 40]: gates and ups are packed in blocks of 32 columns by gemmill.quantize.prepack_gate_up",
    ),
    "out of all columns": (
        BF16,
        {"out": torch.zeros(5, 512, dtype=torch.bfloat16)},
        "out is [5, 512], expected [M, hidden] = [5, 256]",
    ),
    "row-major weights": (
        BF16,
        {"b": torch.zeros(160, 512).to(torch.float8_e4m3fn)},
        "b has strides [512, 1] and must be column-major: pass weight.t() of a contiguous [N, K] weight",
    ),
    "scales of other rows": (
        BF16,
        {"a_scales": torch.ones(4, 1)},
        "a_scales has shape [4, 1] and strides [1, 1]: there is one value, or one for each of 5 rows, without gaps",
    ),
    "scales of gates alone": (
        BF16,
        {"b_scales": torch.ones(256)},
        "b_scales has shape [256] and strides [1]: there is one value, or one for each of 512 columns, without gaps; or in groups "
        "along K: [2, 4] of 128 gates, then ups, [5, 16] of 32, [5, 512] of each",
    ),
    "blocks of gates alone": (
        IN_GROUPS,
        {"b_scales": torch.ones(4, 2)},
        "b_scales has shape [4, 2] and strides [2, 1]: there is one value, or one for each of 512 columns, without gaps; or in "
        "groups along K: [4, 4] of 128 gates, then ups, [13, 16] of 32, [13, 512] of each",
    ),
    "scales of rows beside blocks": (
        IN_GROUPS,
        {"a_scales": torch.ones(5, 1)},
        "a_scales has shape [5, 1], expected [5, 4]: a scale of each row for each 128 along K, as b_scales of [4, 4] has them",
    ),
    "codes without a scale": (
        BF16,
        {"out": torch.zeros(5, 256).to(torch.float8_e4m3fn)},
        "out is float8_e4m3fn: bfloat16 has neither out_scales nor static_scale, float8_e4m3fn has one of the two",
    ),
    "two kinds of scales": (
        GROUPS,
        {"static_scale": torch.ones(1)},
        "out is float8_e4m3fn: bfloat16 has neither out_scales nor static_scale, float8_e4m3fn has one of the two",
    ),
    "a scale of a row": (
        GROUPS,
        {"out_scales": torch.ones(5, 1)},
        "out_scales has shape [5, 1], expected [5, 2]: a scale for each 128 of a row; for one of a whole row store bfloat16, and "
        "quantise that",
    ),
    "scales over one another": (
        GROUPS,
        {"out_scales": torch.ones(1, 1).expand(5, 2)},
        "out_scales has strides [0, 0]: rows or columns of it must lie apart, and be without gaps",
    ),
    "results of no whole group": (
        replace(GROUPS, hidden=144),
        {},
        "b is [160, 288], 144 results: scales are of 128 each, store bfloat16 or give static_scale",
    ),
    "several given scales": (STATIC, {"static_scale": torch.ones(2)}, "static_scale has shape [2]: expected one value"),
    "dtypes": (
        BF16,
        {"a": torch.zeros(5, 160, dtype=torch.int8)},
        "b is float8_e4m3fn and a is int8: they must have the same dtype",
    ),
    "another dtype": (
        BF16,
        {"a": torch.zeros(5, 160, dtype=torch.bfloat16)},
        "a is bfloat16, expected float8_e4m3fn or int8",
    ),
    "blocks that are not whole": (
        replace(IN_GROUPS, hidden=192),
        {},
        "b is [400, 384], 192 results: blocks of 128 gates and of 128 ups are whole, pad the weights with zeros",
    ),
    "int8 in groups": (
        replace(IN_GROUPS, dtype=DType.S8),
        {},
        "a is int8, and b_scales of [4, 4] are in groups: these come with float8_e4m3fn, give int8 scales of rows and columns",
    ),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_a_call_that_cannot_be_is_told_why(name: str) -> None:
    spec, changes, said = SENTENCES[name]
    arguments = given(spec) | changes
    with pytest.raises(RuntimeError) as error:
        call(arguments)
    assert str(error.value) == f"scaled_mm_act_quant: {said}"


# Cases and bounds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [*smoke(Arch.SM90A), *OF_BLOCKS, *FEW_OF_INT8], ids=to_name)
def test_cases_pass_on_a_cpu(config: AnyConfig) -> None:
    for case in of_config(config):
        assert case.run("cpu").report == "", str(case)


@pytest.mark.parametrize("group_size", [0, 128])
@pytest.mark.parametrize("result", RESULTS)
def test_a_wrong_result_is_found(result: Result, group_size: int) -> None:
    right = GatedCase(spec=replace(BF16, result=result, group_size=group_size, data="integers"))
    arguments, memory = right._made("cpu")
    call(arguments)
    written = {name: memory.tensor(name) for name in memory.slots}
    assert report_of(wrong_of(arguments, written, exactly=True)) == ""
    other = arguments | {"b": arguments["b"].flip(1)}
    assert "are wrong" in report_of(wrong_of(other, written, exactly=True))


@pytest.mark.parametrize("group_size", [0, 128])
@pytest.mark.parametrize("activation", Activation)
def test_a_bound_is_wide_enough_for_a_right_kernel_and_too_narrow_for_a_wrong_one(
    activation: Activation, group_size: int
) -> None:
    first = SWIGLU if activation is Activation.SWIGLU else BF16
    spec = replace(first, activation=activation, k=512, group_size=group_size)
    x = given(spec)
    operands = x["a"], x["b"], x["a_scales"], x["b_scales"]
    within = bounds.interval(operands, activation, spec.numbers, exactly=False)
    value = reference.values(*operands, activation, *spec.numbers)
    assert bool(((value >= within.low) & (value <= within.high)).all())
    lost = x["a"][:, :480], x["b"][:480], *operands[2:]
    wrong = reference.values(*lost, activation, *spec.numbers)
    assert bool(((wrong < within.low) | (wrong > within.high)).any()), "a step that is left out would not be found"


@pytest.mark.parametrize("activation", Activation)
def test_bounds_of_int8_leave_no_room_for_sums(activation: Activation) -> None:
    spec = replace(INT8, activation=activation, numbers=OF_SWIGLU if activation is Activation.SWIGLU else NEUTRAL)
    x = given(spec)
    operands = x["a"], x["b"], x["a_scales"], x["b_scales"]
    found, exact = (bounds.interval(operands, activation, spec.numbers, exactly=known) for known in (False, True))
    assert torch.equal(found.low, exact.low) and torch.equal(found.high, exact.high)
    a = x["a"].clone()
    a[0, 0] ^= 4
    wrong = reference.values(a, *operands[1:], activation, *spec.numbers)
    assert bool(((wrong < found.low) | (wrong > found.high)).any()), "another sum would not be found"


# Kernels --------------------------------------------------------------------------------------------------------------


def test_names_and_rules() -> None:
    one_launch = [x for x in default(Arch.SM90A) if not isinstance(x, GatedPartsConfig)]
    assert {(x.group_size, x.operand_dtype) for x in one_launch} == {(0, DType.E4M3), (0, DType.S8)}
    integers = [x for x in default(Arch.SM90A) if x.operand_dtype is DType.S8]
    assert {x.epilogue.result for x in integers if isinstance(x, UnalignedGatedConfig)} == set(RESULTS), (
        "all calls are served"
    )
    assert len([x for x in integers if not isinstance(x, GatedPartsConfig)]) == 6
    others = {UnalignedGatedConfig: UNALIGNED_RULES, GatedPartsConfig: PARTS_RULES}
    for config in sweep(Arch.SM90A):
        assert parse_name(to_name(config)) == config
        if rules := others.get(type(config)):
            assert first_rejection(rules, config)
            continue
        assert first_rejection(RULES, config)
        plan = Plan(config)
        assert plan.stages >= 3 and plan.shared_bytes <= 227 * 1024
    assert list(default(Arch.SM100A)) == []
    of_any_layout = list(default(Arch.SM120F))
    assert len(of_any_layout) == 6 and all(first_rejection(UNALIGNED_RULES, config) for config in of_any_layout)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"arch": Arch.SM100A}, "gated kernels are written for sm90a, not for sm100a"),
        ({"accumulation": Accumulation.EXACT}, "sums of e4m3 are not exact: fast or promoted"),
        (
            {"cluster_shape_mnk": (2, 2, 1)},
            "cluster (2, 2, 1): pairs along M or N share loads, swapped kernels share none",
        ),
        (
            {"tile_shape_mnk": (64, 256, 128)},
            "tile 64x256x128: rows are a multiple of 128, columns of 32 from 16 to 256, and K of 128 bytes",
        ),
        (
            {"tile_shape_mnk": (128, 192, 128)},
            "tile (128, 192, 128) has 96 results of a row, 32 of them in a box: a scale belongs to 128 of one tile",
        ),
        ({"tile_shape_mnk": (256, 256, 128)}, "sums of a tile take 256 registers of a thread, there are 192"),
        ({"kernel_schedule": KernelSchedule.MMA_SYNC}, "gated kernels have no mmasync schedule"),
    ],
)
def test_what_the_kernel_cannot_be_made_of(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError) as error:
        Plan(changed(MANY, **changes))
    assert str(error.value) == reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"swap_ab": False},
            "scales in groups of 32 with weights as columns: a thread would hold one for each, swap_ab has two",
        ),
        (
            {"accumulation": Accumulation.FAST},
            "scales in groups of 32 with fast sums: they are applied where sums are promoted",
        ),
        (
            {"rows_scaled": False},
            "scales in groups of 32 of blocks: a plain GEMM makes this product, of packed rows that lie block by block",
        ),
    ],
)
def test_what_a_kernel_of_operands_in_groups_cannot_be_made_of(changes: dict[str, Any], reason: str) -> None:
    config = next(in_fine_groups(Arch.SM90A))
    assert Plan(config).copying_threads == 32 and Plan(MANY).copying_threads == 0
    with pytest.raises(ValueError) as error:
        Plan(changed(config, **changes))
    assert str(error.value) == reason


def test_what_a_kernel_of_int8_cannot_be_made_of() -> None:
    config = next(of_int8(Arch.SM90A))
    with pytest.raises(ValueError, match=r"^sums of s8 are exact, not fast$"):
        Plan(changed(config, accumulation=Accumulation.FAST))
    sentence = r"^group_size=128 of s8: scales are of 128 or 32 along K with e4m3, else 0$"
    with pytest.raises(ValueError, match=sentence):
        replace(config.operands, group_size=128)
    with pytest.raises(ValueError, match=r"^dtype=bf16: gated kernels multiply e4m3 or s8$"):
        Operands(dtype=DType.BF16)
    with pytest.raises(ValueError, match=r"^indexed=True contradicts by_expert=False: experts' rows are gathered$"):
        Operands(dtype=DType.S8, indexed=True)
    with pytest.raises(ValueError, match=r"^activation=None: a kernel that loads with TMA is compiled for one$"):
        replace(config, epilogue=Epilogue(result=Result.BF16))
    with pytest.raises(ValueError, match=r"must be positive$"):
        changed(config, tile_shape_mnk=(0, 16, 256))


def test_calls_of_int8_find_kernels_of_int8_alone() -> None:
    question = {option.name: option.default if option.kind is bool else None for option in REGISTRY.questions.values()}
    question |= {"m": 5, "n": 512, "k": 400, "dtype": "s8"}
    judged = check(SCALED_MM_ACT_QUANT, of_arguments(SCALED_MM_ACT_QUANT, asked(SCALED_MM_ACT_QUANT.name, question)))
    found = [config for config in sweep(Arch.SM90A) if judged["class"] in classes_of(config)]
    assert len(found) == 5 and {config.operand_dtype for config in found} == {DType.S8}
    assert all(
        config.gemm_operands.accumulator_dtype is DType.S32 for config in found if isinstance(config, GatedConfig)
    )
    with pytest.raises(ValueError, match=r"^scaled_mm_act_quant of s8 with --in-groups: such scales come with e4m3$"):
        asked(SCALED_MM_ACT_QUANT.name, question | {"in_groups": True})


@pytest.mark.parametrize("is_in_groups", [False, True])
def test_a_question_with_scales_in_groups_finds_their_kernels(is_in_groups: bool) -> None:
    question = {option.name: option.default if option.kind is bool else None for option in REGISTRY.questions.values()}
    question |= {"m": 5, "n": 512, "k": 400, "group": 128, "in_groups": is_in_groups}
    judged = check(SCALED_MM_ACT_QUANT, of_arguments(SCALED_MM_ACT_QUANT, asked(SCALED_MM_ACT_QUANT.name, question)))
    assert judged["in_groups"] == is_in_groups
    found = [config for config in sweep(Arch.SM90A) if judged["class"] in classes_of(config)]
    assert len(found) >= (1 if is_in_groups else 3) and {x.group_size for x in found} == {128 if is_in_groups else 0}
