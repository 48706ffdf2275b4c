"""Grouped GEMMs with an alpha of each expert and a bias of its columns, where weights are not packed, on CPU tensors."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.families.grouped_mm.bounds import tolerance
from gemmill.families.grouped_mm.cases.calls import CallSpec, arguments_of, make_given
from gemmill.families.grouped_mm.cases.checked import GroupedCase, of_config
from gemmill.families.grouped_mm.classes import CLASSES, classes_of
from gemmill.families.grouped_mm.config import SCALE_GROUPS, AnyConfig, Epilogue, UnalignedGroupedConfig
from gemmill.families.grouped_mm.dsl.plan import Plan
from gemmill.families.grouped_mm.reference import exact_mm, segment_mm
from gemmill.families.grouped_mm.rules import UNALIGNED_RULES
from gemmill.families.grouped_mm.selections import biased, default, sweep
from gemmill.family import first_rejection
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Arch, DType

BLOCKS_128, BLOCKS_32, ROWS_32 = SCALE_GROUPS
CHANNEL = CallSpec(counts=(3, 0, 5), n=64, k=160, spare=2, alpha=True, bias=True)
KINDS = {
    "channel": CHANNEL,
    "groups": replace(CHANNEL, groups=BLOCKS_128),
    "one value": replace(CHANNEL, one_value=True),
    "s8": replace(CHANNEL, dtype=DType.S8),
    "bf16": replace(CHANNEL, dtype=DType.BF16),
    "f16": replace(CHANNEL, dtype=DType.F16, out_dtype=DType.F16),
}


def given(p: CallSpec) -> dict[str, Any]:
    shape = (len(p.counts), p.slot, p.n) if p.slot else (p.rows, p.n)
    dtype = getattr(torch, p.out_dtype.torch_name)
    return make_given(p, torch.device("cpu")) | {"out": torch.full(shape, torch.nan, dtype=dtype)}


def call(p: CallSpec, arguments: dict[str, Any]) -> Tensor:
    getattr(torch.ops.gemmill, p.op).default(*arguments_of(p.op, arguments, arguments["out"]))
    return arguments["out"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ends", ["alpha", "bias", "both"])
def test_sums_of_an_expert_end_with_its_alpha_and_its_bias(kind: str, ends: str) -> None:
    """Of small integers every order of operations gives the same: float64 decides."""
    p = replace(KINDS[kind], data="integers", alpha=ends != "bias", bias=ends != "alpha")
    x = given(p)
    out = call(p, x)
    plain = call(p, given(p) | {"alpha": None, "bias": None, "out": torch.full_like(out, torch.nan)})
    for begin, end, e in ((2, 5, 0), (5, 10, 2)):
        a, b = x["a"][begin:end].double(), x["b"][e].double()
        if x["a_scales"] is not None and p.groups is None:
            a = a * (x["a_scales"] if p.one_value else x["a_scales"][begin:end]).double()
            b = b * x["b_scales"][e].double().reshape(-1, 1)
        elif p.groups is not None:
            a = a * x["a_scales"][begin:end].double().repeat_interleave(128, 1)[:, :160]
            b = b * x["b_scales"][e].double().repeat_interleave(128, 0)[:64].repeat_interleave(128, 1)[:, :160]
        wanted = a @ b.t()
        wanted = wanted if x["alpha"] is None else wanted * x["alpha"][e].double()
        wanted = wanted if x["bias"] is None else wanted + x["bias"][e].double()
        assert torch.equal(out[begin:end], wanted.to(out.dtype))
    assert not torch.equal(out[2:10], plain[2:10])
    assert bool(out[:2].isnan().all() and out[10:].isnan().all()), "rows of no expert are written"


def test_both_belong_to_the_weights() -> None:
    x = given(CHANNEL)
    wanted = call(CHANNEL, x).clone()
    moved = {name: x[name][[2, 0]] for name in ("b", "b_scales", "alpha", "bias")}
    mapped = {"expert_map": torch.tensor([1, -1, 0], dtype=torch.int32), "out": torch.full_like(wanted, torch.nan)}
    assert torch.equal(call(CHANNEL, x | moved | mapped)[2:10], wanted[2:10])


def test_slots_and_rows_by_number() -> None:
    plain, masked = replace(CHANNEL, spare=0), given(replace(CHANNEL, slot=6, spare=0))
    x = given(plain)
    wanted = call(plain, x).clone()
    for name in ("a", "a_scales"):
        masked[name] = torch.zeros_like(masked[name].float()).to(masked[name].dtype)
        masked[name][0, :3], masked[name][2, :5] = x[name][:3], x[name][3:]
    masked |= {name: x[name] for name in ("b", "b_scales", "alpha", "bias")}
    out = call(replace(CHANNEL, slot=6), masked)
    assert torch.equal(out[0, :3], wanted[:3]) and torch.equal(out[2, :5], wanted[3:])
    order = torch.tensor([7, 6, 5, 4, 3, 2, 1, 9], dtype=torch.int32)
    turned = {name: x[name].float().flip(0).to(x[name].dtype) for name in ("a", "a_scales")}
    gathered = call(plain, x | turned | {"token_ids": order, "out": torch.full_like(wanted, torch.nan)})
    assert torch.equal(gathered[1:7], wanted[1:7])
    assert torch.equal(gathered[7], x["bias"][2]), "row 9 is none: zeros, and the bias"


def test_functions_take_them_and_compile() -> None:
    x = given(CHANNEL)
    names = ("a", "b", "a_scales", "b_scales", "expert_offsets")
    wanted = call(CHANNEL, x)
    ends = {"alpha": x["alpha"], "bias": x["bias"]}
    out = gemmill.grouped_mm(*(x[name] for name in names), **ends, check=True)
    assert torch.equal(out[2:10], wanted[2:10])
    compiled = torch.compile(gemmill.grouped_mm, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*(x[name] for name in names), **ends)[2:10], wanted[2:10])
    y = given(replace(CHANNEL, slot=6, spare=0))
    masked = [y[name] for name in ("a", "b", "a_scales", "b_scales", "rows")]
    out = gemmill.grouped_mm_masked(*masked, alpha=y["alpha"], bias=y["bias"])
    assert torch.equal(out[0, :3], call(replace(CHANNEL, slot=6, spare=0), y)[0, :3])
    compiled = torch.compile(gemmill.grouped_mm_masked, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*masked, alpha=y["alpha"], bias=y["bias"])[0, :3], out[0, :3])


SENTENCES = {
    "alpha's dtype": ({"alpha": torch.ones(3, dtype=torch.float64)}, "alpha is float64, expected float32"),
    "alpha's shape": ({"alpha": torch.ones(2)}, "alpha has shape [2], expected [weights] = [3]"),
    "alpha's strides": ({"alpha": torch.ones(6)[::2]}, "alpha has strides [2]: its values must be contiguous"),
    "bias' dtype": ({"bias": torch.ones(3, 64)}, "bias is float32, expected bfloat16"),
    "bias' shape": (
        {"bias": torch.ones(64, dtype=torch.bfloat16)},
        "bias has shape [64] and strides [1]: expected [3, 64], contiguous",
    ),
    "bias' strides": (
        {"bias": torch.ones(64, 3, dtype=torch.bfloat16).t()},
        "bias has shape [3, 64] and strides [1, 3]: expected [3, 64], contiguous",
    ),
}


@pytest.mark.parametrize("slot", [0, 6])
@pytest.mark.parametrize("name", SENTENCES)
def test_a_call_that_cannot_be_is_told_why(name: str, slot: int) -> None:
    changes, said = SENTENCES[name]
    p = replace(CHANNEL, slot=slot)
    arguments = given(p) | changes
    with pytest.raises(RuntimeError) as error:
        call(p, arguments)
    assert str(error.value) == f"{p.op}: {said}"
    assert bool(arguments["out"].isnan().all())


@pytest.mark.parametrize("kind", ["channel", "groups", "plain"])
def test_a_bound_is_wide_enough_for_a_right_kernel_and_too_narrow_for_a_wrong_one(kind: str) -> None:
    g = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if kind == "plain" else torch.float8_e4m3fn
    a, b = (torch.randn(shape, generator=g).to(dtype) for shape in ((4, 512), (32, 512)))
    scales = {
        "channel": (torch.rand(4, 1, generator=g), torch.rand(32, generator=g)),
        "groups": (torch.rand(4, 4, generator=g), torch.rand(1, 4, generator=g)),
        "plain": (None, None),
    }[kind]
    alpha, bias = torch.rand((), generator=g), torch.randn(32, generator=g).bfloat16()
    for ends in ((alpha, bias), (alpha, None), (None, bias)):
        exact = exact_mm(a, b, *scales, *ends)
        bound = tolerance(a, b, *scales, torch.bfloat16, *ends, promoted=True)
        assert bool(((segment_mm(a, b, *scales, torch.bfloat16, *ends).double() - exact).abs() <= bound).all())
        others = (ends[0], None) if ends[1] is not None else (None, None)
        lost = exact_mm(a, b, *scales, *others)
        assert bool(((lost - exact).abs() > bound).any()), "an end that is left out would not be found"


def test_names_rules_and_facts() -> None:
    for config in biased(Arch.SM90A):
        assert parse_name(to_name(config)) == config
        if isinstance(config, UnalignedGroupedConfig):
            assert first_rejection(UNALIGNED_RULES, config)
            continue
        plan = Plan(config)
        without = Plan(replace(config, epilogue=Epilogue()))
        assert plan.scaled and plan.stages >= without.stages - 1 >= 2 and plan.shared_bytes <= 227 * 1024
        at_end = config.operands.scaled and not config.group_size
        assert [x.name for x in plan.n_fields] == (["b_scale", "bias"] if at_end else ["alpha", "bias"])
        assert [x.name for x in plan.m_fields] == (["a_scale"] if at_end else [])
    assert list(biased(Arch.SM100A)) == []


def test_calls_with_and_without_have_kernels_of_their_own() -> None:
    """Every kind of operands with kernels without alpha and bias has one with them, in `default` too."""
    for selection in (default, sweep):
        numbers = {with_ends: set() for with_ends in (False, True)}
        for config in selection(Arch.SM90A):
            if config.format is None:
                numbers[config.biased].update(classes_of(config))
        ends = dict(CLASSES.told(max(numbers[True])))
        assert ends["biased"] is True
        assert {number + 1 for number in numbers[False]} == numbers[True]


@pytest.mark.parametrize("config", list(biased(Arch.SM90A))[1::19], ids=to_name)
def test_cases_pass_on_a_cpu(config: AnyConfig) -> None:
    cases = list(of_config(config))
    assert {(case.spec.alpha, case.spec.bias) for case in cases} == {(True, True), (True, False), (False, True)}
    for case in cases:
        assert case.run("cpu").report == "", str(case)


def test_a_bias_of_another_expert_is_found() -> None:
    class Wrong(GroupedCase):
        def _made(self, device: str) -> tuple[Any, Any, list[Any]]:
            given, memory, arguments = super()._made(device)
            arguments[9] = arguments[9].roll(1, 0)
            return given, memory, arguments

    assert "elements are wrong" in Wrong(spec=replace(CHANNEL, data="integers")).run("cpu").report
