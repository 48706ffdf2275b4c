"""Gated GEMMs of rows that belong to experts, on CPU tensors: the reference, packing, sentences, cases, names, rules, the choice."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.families.gated_mm import functions
from gemmill.families.gated_mm.cases.asked import asked
from gemmill.families.gated_mm.cases.checked import OF_SWIGLU, ExpertGatedCase, of_config
from gemmill.families.gated_mm.cases.experts import (
    ExpertSpec,
    expert_arguments_of,
    make_expert_given,
    of_counts,
    wrong_of_experts,
)
from gemmill.families.gated_mm.classes import CLASSES, RESULTS, classes_of
from gemmill.families.gated_mm.config import (
    Activation,
    GatedConfig,
    GatedPartsConfig,
    Result,
)
from gemmill.families.gated_mm.dsl.plan import Plan
from gemmill.families.gated_mm.expert_ops import EXPERT_NAMES, GROUPED_MM_ACT_QUANT, GROUPED_MM_ACT_QUANT_MASKED
from gemmill.families.gated_mm.rules import RULES
from gemmill.families.gated_mm.selections import default, of_experts, of_int8, parts, sweep
from gemmill.families.gated_mm.shaped_call import shaped_call_of
from gemmill.family import first_rejection
from gemmill.formats.gate_up import unpack_gate_up
from gemmill.quantize import prepack_gate_up, prepack_gate_up_experts
from gemmill.registry import REGISTRY
from gemmill.runtime.checks import check
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.schemas import BY_NAME
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Arch, DType

_FIRST = ExpertSpec(m=1, hidden=256, k=160, result=Result.BF16, counts=(1,))
BF16 = of_counts(_FIRST, (5, 0, 9, 1), spare=2)
STATIC, GROUPS = (replace(BF16, result=result) for result in (Result.STATIC, Result.GROUP))
SLOTS = of_counts(_FIRST, (5, 0, 8, 1), slot=8)
IN_GROUPS = replace(BF16, group_size=128, k=400)
GATHERED = replace(BF16, indexed=True)
POISON = 0x7F


def given(p: ExpertSpec) -> dict[str, Any]:
    shape = (len(p.counts), p.slot) if p.slot else (p.m,)
    out = torch.empty((*shape, p.hidden), dtype=getattr(torch, p.result.dtype.torch_name))
    x = {"out": out, "out_scales": torch.empty((*shape, p.hidden // 128)) if p.result is Result.GROUP else None}
    for written in x.values():
        if written is not None:
            written.view(torch.uint8).fill_(POISON)
    return x | make_expert_given(p, torch.device("cpu"))


def call(p: ExpertSpec, x: dict[str, Any]) -> Tensor:
    getattr(torch.ops.gemmill, p.op).default(*expert_arguments_of(p.op, x))
    out: Tensor = x["out"]
    return out


def product(p: ExpertSpec, x: dict[str, Any]) -> Tensor:
    """Gates, then ups of every row in bf16, by the grouped GEMM of unpacked weights."""
    parts = []
    for weights, kind in ((x["b"], 0), (x["b"], 1)):
        halves = [unpack_gate_up(one, p.group_size)[kind] for one in weights]
        half = torch.stack([one.contiguous().view(torch.uint8) for one in halves])
        scales = x["b_scales"]
        if p.group_size:
            scales = scales[:, kind::2].contiguous()
        elif not p.one_value:
            scales = torch.stack([unpack_gate_up(one)[kind] for one in scales])
        operands = x["a"], half.view(weights.dtype), x["a_scales"], scales
        if p.slot:
            parts.append(gemmill.grouped_mm_masked(*operands, x["rows"], x["expert_map"]))
        else:
            parts.append(gemmill.grouped_mm(*operands, x["expert_offsets"], x["expert_map"], token_ids=x["token_ids"]))
    return torch.cat(parts, dim=-1).flatten(0, -2)


def kept(p: ExpertSpec) -> list[int]:
    """Rows of an expert."""
    if p.slot:
        return [e * p.slot + i for e, count in enumerate(p.counts) for i in range(count)]
    begin, rows = p.spare, []
    for e, count in enumerate(p.counts):
        rows += [] if p.mapped is not None and p.mapped[e] < 0 else list(range(begin, begin + count))
        begin += count
    return rows


KINDS = {
    "rows": BF16,
    "slots": SLOTS,
    "map": of_counts(_FIRST, (4, 7, 3), mapped=(1, -1, 0)),
    "scales in groups": IN_GROUPS,
    "slots, scales in groups": replace(SLOTS, group_size=128, k=400),
    "one scale": replace(BF16, one_value=True, wide_offsets=True),
    "gathered": GATHERED,
    "gathered, scales in groups": replace(IN_GROUPS, indexed=True, wide_offsets=True),
    "int8": replace(BF16, dtype=DType.S8),
    "int8, slots": replace(SLOTS, dtype=DType.S8),
    "int8, gathered": replace(GATHERED, dtype=DType.S8),
    "gathered, one scale": replace(GATHERED, one_value=True),
}


@pytest.mark.parametrize("spec", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("result", RESULTS)
def test_bits_are_those_of_the_grouped_gemm_and_the_op_after_it(spec: ExpertSpec, result: Result) -> None:
    p = replace(spec, result=result)
    x = given(p)
    found = call(p, x).flatten(0, -2)
    both = product(p, x)[kept(p)].contiguous()
    if result is Result.GROUP:
        wanted, scales = gemmill.silu_and_mul_per_block_quant(both, 128)
        assert torch.equal(x["out_scales"].flatten(0, -2)[kept(p)], scales)
    elif result is Result.STATIC:
        wanted = gemmill.silu_and_mul_quant(both, x["static_scale"])
    else:
        gate, up = both.float().chunk(2, dim=1)
        wanted = (torch.nn.functional.silu(gate) * up).bfloat16()
        assert torch.allclose(found[kept(p)].float(), wanted.float(), rtol=2**-7, atol=1e-6)
        wanted = found[kept(p)]
    assert torch.equal(found[kept(p)].view(torch.uint8), wanted.view(torch.uint8))
    nobodys = [row for row in range(p.m) if row not in kept(p)]
    assert bool((found[nobodys].view(torch.uint8) == POISON).all()), "rows of no expert are not written"
    assert found[kept(p)].view(torch.uint8).unique().numel() > 8, "the data shows it"


def test_swiglu_has_its_numbers() -> None:
    p = replace(BF16, activation=Activation.SWIGLU, numbers=OF_SWIGLU)
    x = given(p)
    gate, up = product(p, x)[kept(p)].double().chunk(2, dim=1)
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    wanted = gate * torch.sigmoid(1.702 * gate) * (up + 1.0)
    assert torch.allclose(call(p, x)[kept(p)].double(), wanted, rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize("kind", [{}, {"group_size": 128}, {"static_scale": torch.full((1,), 0.25)}])
def test_functions_allocate_what_the_ops_write(kind: dict[str, Any]) -> None:
    for p, function, told in (
        (BF16, gemmill.grouped_mm_act_quant, "expert_offsets"),
        (SLOTS, gemmill.grouped_mm_act_quant_masked, "rows"),
    ):
        result = Result.GROUP if "group_size" in kind else Result.STATIC if kind else Result.BF16
        x = given(replace(p, result=result))
        wanted = call(p, x).flatten(0, -2)[kept(p)]
        out, scales = function(x["a"], x["b"], x["a_scales"], x["b_scales"], x[told], **kind)
        assert torch.equal(out.flatten(0, -2)[kept(p)].view(torch.uint8), wanted.view(torch.uint8))
        assert (scales is None) == (result is not Result.GROUP)


@pytest.mark.parametrize("spec", [BF16, SLOTS, GATHERED], ids=["rows", "slots", "gathered"])
def test_codes_per_token_are_those_of_the_op_after_bfloat16(spec: ExpertSpec) -> None:
    x = given(spec)
    function, told = gemmill.grouped_mm_act_quant, "expert_offsets"
    more = {"token_ids": x["token_ids"]}
    if spec.slot:
        function, told, more = gemmill.grouped_mm_act_quant_masked, "rows", {}
    wanted = call(spec, x).flatten(0, -2)[kept(spec)].contiguous()
    codes, scales = gemmill.dynamic_per_token_scaled_fp8_quant(wanted)
    found = function(x["a"], x["b"], x["a_scales"], x["b_scales"], x[told], per_token=True, **more)
    assert found[0].shape == x["out"].shape and found[1].shape == (*x["out"].shape[:-1], 1)
    assert torch.equal(found[0].flatten(0, -2)[kept(spec)].view(torch.uint8), codes.view(torch.uint8))
    assert torch.equal(found[1].flatten(0, -2)[kept(spec)], scales)


def test_many_rows_are_selected_first(monkeypatch: pytest.MonkeyPatch) -> None:
    op, numbers = functions._GROUPED, []
    monkeypatch.setattr(functions, "_GROUPED", lambda *told: (numbers.append(told[-1]), op(*told)))
    for p in (GATHERED, replace(GATHERED, one_value=True), replace(IN_GROUPS, indexed=True)):
        x = given(p)
        wanted = call(p, x)[kept(p)]
        operands = [x[name] for name in ("a", "b", "a_scales", "b_scales", "expert_offsets")]
        for most in (7, 1024):
            monkeypatch.setattr(functions, "MOST_GATHERED", most)
            out, _ = gemmill.grouped_mm_act_quant(*operands, token_ids=x["token_ids"])
            assert torch.equal(out[kept(p)], wanted) and (numbers.pop() is None) == (most == 7 or p.group_size > 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"expert_offsets": torch.tensor([2, 7, 5, 9, 17])},
            "grouped_mm_act_quant: expert_offsets[1] is 7 and expert_offsets[2] is 5: offsets must not decrease",
        ),
        (
            {"expert_offsets": torch.tensor([2, 7, 7, 16, 20])},
            "grouped_mm_act_quant: expert_offsets[4] is 20, expected 0 to 19: a row, or the end of all rows",
        ),
        (
            {"expert_map": torch.tensor([0, 1, 4, -1], dtype=torch.int32)},
            "grouped_mm_act_quant: expert_map[2] is 4, expected -1 to 3: weights of an expert, or -1 for none",
        ),
        (
            {"token_ids": torch.full((19,), 12)},
            "grouped_mm_act_quant: token_ids[0] is 12, expected 0 to 11: one of a's rows",
        ),
    ],
)
def test_values_are_looked_at_on_request(changes: dict[str, Any], said: str) -> None:
    x = given(GATHERED) | {"token_ids": torch.zeros(19, dtype=torch.int32)} | changes
    told = {name: x[name] for name in ("a", "b", "a_scales", "b_scales", "expert_offsets", "expert_map", "token_ids")}
    gemmill.grouped_mm_act_quant(**told)
    with pytest.raises(RuntimeError) as caught:
        gemmill.grouped_mm_act_quant(**told, check=True)
    assert str(caught.value).startswith(said)


def test_rows_of_slots_are_looked_at_on_request() -> None:
    x = given(SLOTS)
    told = [x[name] for name in ("a", "b", "a_scales", "b_scales")]
    with pytest.raises(RuntimeError, match=r"^grouped_mm_act_quant_masked: rows\[1\] is 9, expected 0 to 8"):
        gemmill.grouped_mm_act_quant_masked(*told, torch.tensor([0, 9, 0, 0]), check=True)


def test_scales_of_two_kinds_are_refused() -> None:
    x = given(BF16)
    operands = [x[name] for name in ("a", "b", "a_scales", "b_scales", "expert_offsets")]
    with pytest.raises(ValueError, match=r"^static_scale and group_size are given: results are coded by one kind"):
        gemmill.grouped_mm_act_quant(*operands, static_scale=torch.ones(1), group_size=128)
    with pytest.raises(ValueError, match=r"^group_size is 64, expected 128 or 32, or None"):
        gemmill.grouped_mm_act_quant(*operands, group_size=64)


# Packing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 256), (3, 2, 2)])
def test_each_expert_is_packed_as_a_dense_layer_is(shape: tuple[int, ...]) -> None:
    weights, scales = torch.randn(3, 256, 160).to(torch.float8_e4m3fn), torch.rand(shape)
    packed = prepack_gate_up_experts(weights, scales, "up_gate")
    for e in range(3):
        alone = prepack_gate_up(weights[e], scales[e], "up_gate")
        assert torch.equal(packed.b[e].view(torch.uint8), alone.weights.view(torch.uint8))
        of_expert = alone.scales.t() if alone.scales.dim() == 2 else alone.scales.reshape(packed.scales[e].shape)
        assert torch.equal(packed.scales[e], of_expert)


@pytest.mark.parametrize(
    ("weights", "scales", "said"),
    [
        ((256, 160), (3,), r"^weights have shape \[256, 160\] and scales \[3\]: both are of experts"),
        ((3, 256, 160), (2, 256), r"^weights have shape \[3, 256, 160\] and scales \[2, 256\]: both are of experts"),
        ((0, 256, 160), (0,), r"^weights are of 0 experts, expected one or more$"),
    ],
)
def test_what_cannot_be_packed_is_said(weights: tuple[int, ...], scales: tuple[int, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        prepack_gate_up_experts(torch.zeros(weights).to(torch.float8_e4m3fn), torch.ones(scales))


# Bad input ----------------------------------------------------------------------------------------------------------


def _refused(p: ExpertSpec, changes: dict[str, Any]) -> str:
    x = given(p) | changes
    with pytest.raises(RuntimeError) as caught:
        call(p, x)
    return str(caught.value)


@pytest.mark.parametrize(
    ("spec", "changes", "said"),
    [
        (
            BF16,
            {"b_scales": torch.ones(4, 3)},
            "b_scales has shape [4, 3]: for weights of [4, 512, 160] there are scales of each",
        ),
        (BF16, {"a_scales": torch.ones(3)}, "with scales of columns there is one value, or one for each of 19 rows"),
        (IN_GROUPS, {"a_scales": torch.ones(19, 3)}, "expected [19, 4]: a scale of each row for each 128 along K"),
        (
            replace(IN_GROUPS, dtype=DType.S8),
            {},
            "a is int8, and b_scales of [4, 4, 4] are in groups: these come with float8_e4m3fn, give int8 scales of rows",
        ),
        (SLOTS, {"rows": torch.ones(3, dtype=torch.int32)}, "rows has shape [3]"),
        (
            BF16,
            {"expert_offsets": torch.zeros(3, dtype=torch.int32)},
            "weights of 4 experts, and there are 2: give an expert_map",
        ),
        (
            GROUPS,
            {"out_scales": torch.ones(19, 1)},
            "expected [19, 2]: a scale for each 128 of a row; for one of a whole row",
        ),
        (
            replace(SLOTS, result=Result.GROUP),
            {"out_scales": torch.ones(4, 8, 1)},
            "expected [4, 8, 2]: a scale for each 128",
        ),
        (BF16, {"static_scale": torch.ones(1)}, "out is bfloat16: bfloat16 has neither out_scales nor static_scale"),
        (BF16, {"activation": "relu"}, "activation is 'relu', expected 'silu'"),
        (BF16, {"alpha": 2.0}, "only 'swiglu' has them, else they are 1, inf, 0"),
        (BF16, {"a": given(SLOTS)["a"].flatten(0, 1)}, "without token_ids both have the same rows"),
        (GATHERED, {"token_ids": torch.ones(3, dtype=torch.int32)}, "token_ids has shape [3], expected [M] = [19]"),
        (GATHERED, {"a_scales": torch.ones(19)}, "one value, or one for each of 12 rows"),
        (SLOTS, {"expected_rows": -1}, "expected_rows is -1, expected a number of rows, or 0 for any"),
    ],
)
def test_bad_input_is_said_in_a_sentence(spec: ExpertSpec, changes: dict[str, Any], said: str) -> None:
    assert said in _refused(spec, changes)


# Kernels ------------------------------------------------------------------------------------------------------------


def test_default_serves_experts_with_rows_in_order_and_gathered() -> None:
    served = [x for x in default(Arch.SM90A) if x.operands.by_expert and not isinstance(x, GatedPartsConfig)]
    assert {(x.epilogue.activation, x.epilogue.result, x.operands.indexed) for x in served} == {
        (activation, result, indexed)
        for activation in (Activation.SILU, Activation.SWIGLU)
        for result in (Result.BF16, Result.GROUP)
        for indexed in (False, True)
    }
    assert len(served) == 20 and not any(x.group_size for x in served)


def test_sweep_has_all_kernels_of_experts_once() -> None:
    found = list(of_experts(Arch.SM90A))
    names = [to_name(x) for x in sweep(Arch.SM90A)]
    assert len(set(names)) == len(names)
    assert {to_name(x) for x in found} == {
        to_name(x)
        for x in sweep(Arch.SM90A)
        if x.operands.by_expert and x.operands.dtype is DType.E4M3 and not x.group_size and isinstance(x, GatedConfig)
    }
    assert {x.operands.indexed for x in found} == {False, True} and not list(of_experts(Arch.SM100A))
    for config in found:
        assert first_rejection(RULES, config).ok and parse_name(to_name(config)) == config
        assert Plan(config).stages >= 2


def test_rows_of_experts_in_int8_have_kernels_of_their_own() -> None:
    found = [x for x in of_int8(Arch.SM90A) if x.operands.by_expert]
    numbers = {n for config in found for n in classes_of(config)}
    assert len(numbers) == 12, "two activations, three results, rows in order and gathered"
    for p in (BF16, SLOTS, GROUPS, STATIC, GATHERED):
        p = replace(p, dtype=DType.S8)
        judged = check(BY_NAME[p.op], of_arguments(BY_NAME[p.op], expert_arguments_of(p.op, given(p))))
        assert judged["class"] in numbers
    for config in found:
        assert first_rejection(RULES, config).ok and Plan(config).tma_bytes <= Plan(config).stage_bytes
    for case in list(of_config(next(x for x in found if x.operands.indexed and x.epilogue.result is Result.GROUP)))[:3]:
        assert not case.run("cpu").report, str(case)


def test_pairs_are_refused() -> None:
    config = next(iter(of_experts(Arch.SM90A)))
    config = replace(config, design=replace(config.design, cluster_shape_mnk=(1, 2, 1), swap_ab=False))
    assert any("single CTAs" in said for rule in RULES for said in rule(config))


def test_a_call_is_of_the_class_of_its_kernels() -> None:
    numbers = {n for config in of_experts(Arch.SM90A) for n in classes_of(config)}
    often = 12  # two activations, three results, rows in order and gathered
    assert len(numbers) == often + 6, "the other two have rows in order alone"
    numbers |= {n for config in parts(Arch.SM90A) for n in classes_of(config)}
    for p in (BF16, SLOTS, GROUPS, STATIC, IN_GROUPS, GATHERED):
        judged = check(BY_NAME[p.op], of_arguments(BY_NAME[p.op], expert_arguments_of(p.op, given(p))))
        told = dict(CLASSES.told(judged["class"]))
        assert judged["class"] in numbers and told["by_expert"] and told["indexed"] == p.indexed
        problem = shaped_call_of(judged)
        assert problem.sizes == (p.m, 512, p.k, 4)


def test_expected_rows_are_what_the_choice_counts() -> None:
    p = SLOTS
    x = given(p) | {"expected_rows": 3}
    judged = check(BY_NAME[p.op], of_arguments(BY_NAME[p.op], expert_arguments_of(p.op, x)))
    assert shaped_call_of(judged).sizes[0] == 12


def first_of(group: int, *, indexed: bool) -> GatedConfig | GatedPartsConfig:
    of_all = (*of_experts(Arch.SM90A), *(x for x in parts(Arch.SM90A) if x.operands.by_expert))
    found = (x for x in of_all if (x.group_size, x.operands.indexed) == (group, indexed))
    return next(x for x in found if x.epilogue.result.group)


# Cases --------------------------------------------------------------------------------------------------------------


def test_cases_of_gathered_rows_name_rows_of_nowhere_too() -> None:
    config = first_of(0, indexed=True)
    cases = [case for case in of_config(config) if isinstance(case, ExpertGatedCase)]
    assert {case.op for case in cases} == {GROUPED_MM_ACT_QUANT.name} and all(case.spec.indexed for case in cases)
    ids = [make_expert_given(case.spec, torch.device("cpu"))["token_ids"] for case in cases]
    assert any(int(x.min()) < 0 for x in ids), "some name no row"
    assert any(int(x.max()) >= case.spec.tokens for x, case in zip(ids, cases, strict=True)), "some a row too far"
    assert {x.dtype for x in ids} == {torch.int32, torch.int64}
    for case in cases[:3]:
        assert not case.run("cpu").report, str(case)


@pytest.mark.parametrize("group", [0, 128, 32])
def test_cases_reach_slots_maps_and_segments_and_pass_by_the_reference(group: int) -> None:
    config = first_of(group, indexed=False)
    cases = list(of_config(config))
    specs = [case.spec for case in cases if isinstance(case, ExpertGatedCase)]
    assert {case.op for case in cases} == set(EXPERT_NAMES) and any(p.mapped for p in specs)
    assert {p.data for p in specs} == {"integers", "random", "large"}
    for case in cases[:4]:
        assert not case.run("cpu").report, str(case)


@pytest.mark.parametrize("name", ["out", "out_scales"])
def test_a_wrong_element_is_found_in_rows_of_experts_and_of_nobody(name: str) -> None:
    p = GROUPS
    x = given(p)
    before = {key: x[key].clone() for key in ("out", "out_scales")}
    call(p, x)
    for row in (kept(p)[3], 0):
        written = {key: x[key].clone() for key in before}
        written[name].view(torch.uint8)[row, 2] ^= 0x55
        wrong = wrong_of_experts(p.op, x, written, before, exactly=False)
        assert [int(found.sum()) for found in wrong] != [0, 0] or (name == "out_scales" and row == kept(p)[3])
    assert [
        int(found.sum()) for found in wrong_of_experts(p.op, x, {k: x[k] for k in before}, before, exactly=False)
    ] == [0, 0]


def test_explain_asks_both_ops() -> None:
    question = {option.name: option.default if option.kind is bool else None for option in REGISTRY.questions.values()}
    question |= {"m": 64, "n": 512, "k": 256, "experts": 4, "group": 128, "in_groups": True}
    for schema in (GROUPED_MM_ACT_QUANT, GROUPED_MM_ACT_QUANT_MASKED):
        judged = check(schema, of_arguments(schema, asked(schema.name, question)))
        assert (judged["experts"], judged["in_groups"], judged["result"]) == (4, 1, 2)
    question |= {"indexed": True}
    judged = check(GROUPED_MM_ACT_QUANT, of_arguments(GROUPED_MM_ACT_QUANT, asked(GROUPED_MM_ACT_QUANT.name, question)))
    assert dict(CLASSES.told(judged["class"]))["indexed"]
    with pytest.raises(ValueError, match=r"^grouped_mm_act_quant_masked with --indexed: its rows are in order"):
        asked(GROUPED_MM_ACT_QUANT_MASKED.name, question)
    question |= {"in_groups": False, "indexed": False}
    with pytest.raises(ValueError, match=r"^scaled_mm_act_quant with --experts: its rows have one layer's weights"):
        asked("scaled_mm_act_quant", question)
