"""Fused experts on CPU tensors: the reference, sentences for bad input, bounds, workspace, rules, names and the choice."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.families.fused_experts import bounds
from gemmill.families.fused_experts.cases.calls import (
    NONE,
    ONE,
    CallSpec,
    arguments_of,
    make_given,
    wanted_of,
)
from gemmill.families.fused_experts.cases.checked import of_config
from gemmill.families.fused_experts.config import CODED, FINE_GROUP, GROUP, Design, ExpertsConfig, Operands
from gemmill.families.fused_experts.functions import fused_experts_workspace
from gemmill.families.fused_experts.ops import FUSED_EXPERTS
from gemmill.families.fused_experts.reference import GATE_UP, INTERLEAVED, UP_GATE
from gemmill.families.fused_experts.rules import RULES
from gemmill.families.fused_experts.selections import plain, smoke, streamed, sweep
from gemmill.families.fused_experts.serving import layer_of
from gemmill.families.fused_experts.tuning import TUNING
from gemmill.family import Row, ShapedCall, first_rejection
from gemmill.runtime import checks
from gemmill.runtime.operands import of_arguments
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Arch, DType
from gemmill.vocab.activation import Activation

BLOCKS = CallSpec(tokens=6, hidden=256, inner=128, weights=4, topk=2, group_size=GROUP)
ROWS = replace(BLOCKS, group_size=0, inner=48)
PLAIN = replace(ROWS, dtype=DType.BF16)
EXACT = replace(BLOCKS, data="integers")


def given(p: CallSpec) -> dict[str, Any]:
    out = torch.full((p.tokens, p.hidden), torch.nan, dtype=torch.bfloat16)
    return make_given(p, torch.device("cpu")) | {"out": out}


def call(arguments: dict[str, Any]) -> Tensor:
    torch.ops.gemmill.fused_experts.default(*arguments_of(arguments))
    out: Tensor = arguments["out"]
    return out


def coded_by_hand(rows: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Codes of float32 rows, and their scales."""
    groups = rows.unflatten(1, (-1, group))
    scales = (groups.abs().amax(dim=-1) / 448).clamp(min=1 / (448 * 512))
    return (groups / scales[..., None]).flatten(1).to(torch.float8_e4m3fn), scales


def one_after_the_other(x: dict[str, Any], group: int) -> Tensor:
    """By gemmill's other ops, pair by pair, of weights with scales of blocks: the parts in float32."""
    total = torch.zeros(x["x"].shape)
    for token, ids in enumerate(x["topk_ids"].tolist()):
        coded, scales = coded_by_hand(x["x"][token : token + 1].float(), group)
        for slot, expert in enumerate(ids):
            if not 0 <= expert < len(x["w13"]):
                continue
            offsets = torch.tensor([0, 1], dtype=torch.int32)
            of = slice(expert, expert + 1)
            product = gemmill.grouped_mm(coded, x["w13"][of], scales, x["w13_scales"][of], offsets)
            if group == GROUP:
                codes, inner = gemmill.silu_and_mul_per_block_quant(product, group)
            else:  # which that op does not take
                gate, up = product.float().chunk(2, dim=1)
                codes, inner = coded_by_hand(torch.nn.functional.silu(gate) * up, group)
            a = codes.double() * inner.double().repeat_interleave(group, dim=1)
            b = x["w2"][expert].double() * x["w2_scales"][expert].double().repeat_interleave(
                group, dim=0
            ).repeat_interleave(group, dim=1)
            total[token] += (x["topk_weights"][token, slot] * (a @ b.t()).float())[0]
    return total


@pytest.mark.parametrize("group", [GROUP, FINE_GROUP])
def test_a_layer_is_what_its_ops_give_one_after_the_other(group: int) -> None:
    x = given(replace(BLOCKS, group_size=group))
    wanted, found = one_after_the_other(x, group), call(x)
    assert not found.isnan().any()
    torch.testing.assert_close(found.float(), wanted, rtol=2**-7, atol=float(wanted.abs().max()) * 2**-9)


@pytest.mark.parametrize("p", [BLOCKS, ROWS, PLAIN])
def test_orders_of_gates_and_ups_are_told(p: CallSpec) -> None:
    p = replace(p, order=GATE_UP)
    x = given(p)
    first = call(x).clone()
    gate, up = x["w13"].view(torch.int8 if p.dtype is CODED else torch.bfloat16).chunk(2, dim=1)
    halves = [] if x["w13_scales"] is None else list(x["w13_scales"].chunk(2, dim=1))
    other = torch.cat((up, gate), dim=1).view(x["w13"].dtype)
    scales = torch.cat(halves[::-1], dim=1) if halves else None
    assert torch.equal(call(x | {"w13": other, "w13_scales": scales, "order": UP_GATE}), first)
    if not p.group_size:
        woven = torch.stack((gate, up), dim=2).flatten(1, 2).contiguous().view(x["w13"].dtype)
        scales = torch.stack(halves, dim=2).flatten(1, 2).contiguous() if halves else None
        assert torch.equal(call(x | {"w13": woven, "w13_scales": scales, "order": INTERLEAVED}), first)


def test_tokens_without_experts_are_zero_or_stay() -> None:
    p = replace(BLOCKS, routed=NONE)
    assert torch.equal(call(given(p)), torch.zeros(p.tokens, p.hidden, dtype=torch.bfloat16))
    x = given(replace(p, adds=True))
    before = x["out"].normal_().clone()
    assert torch.equal(call(x), before)


def test_what_is_added_to_is_added_once_and_rounded_once() -> None:
    x = given(EXACT)
    alone = call(x).clone()
    with_it = x | {"adds": True, "out": torch.full_like(alone, 0.5)}
    found = call(with_it)
    wanted = bounds.judged(layer_of(x | {"out": alone}), torch.full_like(alone, 0.5), exactly=True)
    assert torch.equal(found, wanted.rounded) and not torch.equal(found, alone)


def test_a_map_says_whose_weights_an_expert_has() -> None:
    x = given(BLOCKS)
    ids = x["topk_ids"].clamp(0, 3)
    first = call(x | {"topk_ids": ids}).clone()
    mapped = torch.tensor([9, -1, 3, 2, 1, 0], dtype=torch.int32)
    assert torch.equal(call(x | {"topk_ids": 5 - ids, "expert_map": mapped}), first)
    nobody = call(x | {"topk_ids": ids % 2, "expert_map": mapped})  # -1, and absent weights
    assert torch.equal(nobody, torch.zeros_like(first))


def test_the_routers_weight_belongs_to_gates_and_ups_or_to_the_result() -> None:
    x = given(replace(PLAIN, topk=1, routed=ONE))
    x["topk_weights"].fill_(2.0)
    doubled = call(x).clone()
    assert torch.allclose(doubled.float(), 2 * call(x | {"topk_weights": torch.ones_like(x["topk_weights"])}).float())
    assert not torch.allclose(call(x | {"weight_on_input": True}).float(), doubled.float(), rtol=0.1)


def test_an_expert_that_comes_twice_counts_twice() -> None:
    x = given(replace(EXACT, topk=1, routed=ONE))
    single = call(x).clone()
    twice = x | {name: x[name].repeat(1, 2) for name in ("topk_ids", "topk_weights")}
    assert torch.equal(call(twice), 2 * single)


def test_the_function_is_the_op() -> None:
    x = given(replace(PLAIN, activation=Activation.SWIGLU, biased=True))
    names = "x w13 w2 w13_scales w2_scales topk_ids topk_weights".split()
    biases = {name: x[name] for name in ("w13_bias", "w2_bias")}
    found = gemmill.fused_experts(*(x[name] for name in names), "swiglu", alpha=1.702, limit=7.0, beta=1.0, **biases)
    assert torch.equal(found, call(x))
    with pytest.raises(ValueError, match=r"^order is 'down', expected 'gate_up', 'up_gate' or 'interleaved'$"):
        gemmill.fused_experts(*(x[name] for name in names), order="down")
    with pytest.raises(
        ValueError, match=r"^adds is True and out is None: give the tensor that the result is added to$"
    ):
        gemmill.fused_experts(*(x[name] for name in names), adds=True)


def test_ids_are_looked_at_on_request() -> None:
    x = given(PLAIN)
    names = "x w13 w2 w13_scales w2_scales topk_ids topk_weights".split()
    x["topk_ids"].zero_()[2, 1] = 4
    said = r"^fused_experts: topk_ids\[2, 1\] is 4, expected -1 to 3: one of 4 experts, or -1 for none$"
    with pytest.raises(RuntimeError, match=said):
        gemmill.fused_experts(*(x[name] for name in names), check=True)
    mapped = torch.tensor([0, 1, 2, 3, 7], dtype=torch.int32)
    said = r"^fused_experts: expert_map\[4\] is 7, expected -1 to 3: one of 4 experts, or -1 for none$"
    with pytest.raises(RuntimeError, match=said):
        gemmill.fused_experts(*(x[name] for name in names), expert_map=mapped, check=True)


def refusal(p: CallSpec, **changed: Any) -> str:
    x = given(p) | changed
    before = x["out"].clone()
    with pytest.raises(RuntimeError) as caught:
        call(x)
    assert torch.equal(x["out"].view(torch.int16), before.view(torch.int16)), "out was written"
    return str(caught.value)


E4M3 = torch.float8_e4m3fn
SENTENCES = (
    (BLOCKS, {"activation": "relu"}, "activation is 'relu', expected 'silu', 'gelu', 'gelu_tanh' or 'swiglu'"),
    (
        BLOCKS,
        {"alpha": 2.0},
        "alpha, limit, beta = 2.0, inf, 0.0 with activation 'silu': only 'swiglu' has them, else they are 1, inf, 0",
    ),
    (
        BLOCKS,
        {"order": 3},
        "order is 3, expected 0 (gates, then ups), 1 (ups, then gates) or 2 (each gate before its up)",
    ),
    (
        BLOCKS,
        {"w2": torch.zeros(4, 256, 144).to(E4M3)},
        "w13 is [4, 256, 256] and w2 is [4, 256, 144]: gates and ups are 256 rows, expected 2 * 144, for w2 has rows of 144",
    ),
    (
        replace(ROWS, inner=40),
        {},
        "rows of w13 and w2 have 256 and 40 elements: kernels read whole pieces of 16, pad weights with zeros",
    ),
    (
        replace(BLOCKS, inner=192),
        {},
        "w2 has rows of 192 and order is 0: scales of blocks want rows of a multiple of 128, and gates apart from ups (order 0 or 1)",
    ),
    (
        replace(BLOCKS, group_size=FINE_GROUP, inner=48),
        {},
        "w2 has rows of 48 and order is 0: scales of blocks want rows of a multiple of 32, and gates apart from ups (order 0 or 1)",
    ),
    (
        replace(BLOCKS, group_size=FINE_GROUP),
        {"w2_scales": torch.ones(4, 2, 1)},
        "w2_scales has shape [4, 2, 1], expected [4, 8, 4]: a scale for each 32 x 32 of w2, as w13_scales are of blocks",
    ),
    (
        BLOCKS,
        {"w13_scales": torch.ones(4, 4, 4)},
        "w13 is float8_e4m3fn of [4, 256, 256]: weights of x's type have no scales; float8_e4m3fn has w13_scales and w2_scales, of experts, "
        "rows, or blocks of 128 x 128 ([4, 2, 2]) or 32 x 32 ([4, 8, 8])",
    ),
    (
        BLOCKS,
        {"order": 2},
        "w2 has rows of 128 and order is 2: scales of blocks want rows of a multiple of 128, and gates apart from ups (order 0 or 1)",
    ),
    (
        replace(BLOCKS, topk=5),
        {},
        "topk_ids is [6, 5], 5 experts of each token, and there are 4: give an expert_map where others are elsewhere",
    ),
    (
        BLOCKS,
        {"w2_scales": torch.ones(4, 256)},
        "w2_scales has shape [4, 256], expected [4, 2, 1]: a scale for each 128 x 128 of w2, as w13_scales are of blocks",
    ),
    (
        ROWS,
        {"w2_scales": torch.ones(4, 2, 2)},
        "w2_scales has shape [4, 2, 2] and strides [4, 2, 1]: for w2 of [4, 256, 48] there are scales of each expert ([4]) or of each row "
        "([4, 256]), contiguous, or both weights have blocks",
    ),
    (
        ROWS,
        {"w2_scales": None},
        "w13 is float8_e4m3fn of [4, 96, 256]: weights of x's type have no scales; float8_e4m3fn has w13_scales and w2_scales, of experts, "
        "rows, or blocks of 128 x 128 ([4, 1, 2]) or 32 x 32 ([4, 3, 8])",
    ),
    (
        BLOCKS,
        {"workspace": torch.empty(1000, dtype=torch.uint8)},
        f"workspace has [1000] bytes, expected {fused_experts_workspace(6, 256, 128, 2, 4)} or more: gemmill.fused_experts_workspace says "
        "how many",
    ),
    (
        BLOCKS,
        {"w13_bias": torch.zeros(4, 128, dtype=torch.bfloat16)},
        "w13_bias has shape [4, 128] and strides [128, 1], expected [4, 256], contiguous",
    ),
    (
        BLOCKS,
        {"topk_ids": torch.zeros(6, 3, dtype=torch.int32)},
        "topk_weights is [6, 2], expected [M, topk] = [6, 3]",
    ),
    (BLOCKS, {"expert_map": torch.zeros(4)}, "expert_map is float32, expected int32"),
)


@pytest.mark.parametrize(("p", "changed", "said"), SENTENCES)
def test_bad_input_is_told_in_a_sentence(p: CallSpec, changed: dict[str, Any], said: str) -> None:
    assert refusal(p, **changed) == f"fused_experts: {said}"


def test_more_experts_than_a_kernel_sorts_by_are_refused() -> None:
    assert refusal(replace(PLAIN, weights=513, hidden=16, inner=16)) == (
        "fused_experts: w13 is [513, 32, 16], weights of 513 experts: a kernel sorts by 1 to 512"
    )


def test_a_workspace_is_as_large_as_the_contract_says() -> None:
    rng = random.Random(0)
    for _ in range(60):
        p = replace(
            ROWS if rng.random() < 0.5 else PLAIN,
            tokens=rng.randrange(0, 40),
            hidden=16 * rng.randrange(1, 5),
            inner=16 * rng.randrange(1, 12),
            weights=rng.randrange(4, 30),
            topk=rng.randrange(1, 5),
        )
        coded = p.dtype is CODED
        judged = checks.check(FUSED_EXPERTS, of_arguments(FUSED_EXPERTS, arguments_of(given(p))))
        told = fused_experts_workspace(p.tokens, p.hidden, p.inner, p.topk, p.weights, coded=coded)
        assert told == judged["bytes_coded" if coded else "bytes_plain"]
        assert told >= fused_experts_workspace(max(p.tokens - 1, 0), p.hidden, p.inner, p.topk, p.weights, coded=coded)
    with pytest.raises(ValueError, match=r"^topk is -1, expected 0 or more$"):
        fused_experts_workspace(1, 16, 16, -1, 4)


def test_no_tokens_are_no_work() -> None:
    for p in (BLOCKS, ROWS, PLAIN):
        assert call(given(replace(p, tokens=0))).shape == (0, p.hidden)


@pytest.mark.parametrize("p", [EXACT, BLOCKS, ROWS, PLAIN, replace(EXACT, biased=True, weight_on_input=True)])
def test_the_reference_is_within_the_bound_and_a_wrong_result_is_not(p: CallSpec) -> None:
    x = given(p)
    exactly = p.data == "integers"
    wanted, found = wanted_of(x, exactly=exactly, by_warps=True), call(x)
    assert wanted.compare(found).ok and wanted.compare(found).worst_fraction <= 1
    swapped = x | {"topk_weights": x["topk_weights"].flip(0), "out": torch.empty_like(found)}
    assert not wanted.compare(call(swapped)).ok, "router weights of other tokens pass"
    for name in ("w13", "w2"):
        bits = x[name].view(torch.int16 if x[name].element_size() == 2 else torch.int8)
        rolled = x | {name: bits.roll(1, dims=1).view(x[name].dtype), "out": torch.empty_like(found)}
        assert not wanted.compare(call(rolled)).ok, f"rows of {name} that moved by one pass"


def test_bounds_hold_for_products_summed_in_float32() -> None:
    """As kernels sum: by 128 along K, in float32, in slices."""
    p = replace(BLOCKS, hidden=1024)
    x = given(p)
    layer = layer_of(x)
    wanted = bounds.judged(replace(layer, by_warps=True), None, exactly=False)
    for rows in bounds.reference.rows_of(layer):
        codes, scales = bounds.reference.coded(layer.x[rows.tokens].float(), GROUP)
        total = torch.zeros(len(codes), layer.w13.shape[1])
        for first in (1, 0):  # odd groups, then even ones: another order than the reference's
            for g in range(first, p.hidden // GROUP, 2):
                at = slice(g * GROUP, (g + 1) * GROUP)
                factor = scales[:, g, None] * layer.w13_scales[rows.weights][torch.arange(total.shape[1]) // GROUP, g]
                total += codes[:, at].float() @ layer.w13[rows.weights][:, at].float().t() * factor
        exact = bounds.reference.inner_products(layer, rows).double()
        assert bool(((total.double() - exact).abs() <= bounds._inner_error(layer, rows)).all())
    assert bool((wanted.bound < 0.1 * wanted.exact.abs().max()).all()), "the bound would hide a wrong tile"


def test_the_bound_has_room_for_sums_of_the_tensor_core_for_e4m3() -> None:
    """Sums that keep 13 bits below the largest product of an instruction are within it, and not within that of warps."""
    x = given(replace(BLOCKS, hidden=1024, tokens=32))
    layer = layer_of(x)
    for rows in bounds.reference.rows_of(layer):
        codes, scales = bounds.reference.coded(layer.x[rows.tokens].float(), GROUP)
        w13, total = layer.w13[rows.weights].double(), torch.zeros(len(codes), layer.w13.shape[1], dtype=torch.float64)
        blocks = torch.arange(len(w13)) // GROUP
        for start in range(0, layer.x.shape[1], GROUP):
            running = torch.zeros_like(total)
            for k in range(start, start + GROUP, 32):
                terms = codes[:, None, k : k + 32].double() * w13[None, :, k : k + 32]
                terms = torch.cat([terms, running[..., None]], dim=2)
                unit = torch.exp2(terms.abs().amax(dim=2, keepdim=True).clamp(min=1e-30).log2().floor() - 13)
                running = ((terms / unit).trunc() * unit).sum(dim=2)
            g = start // GROUP
            total += running * (scales[:, g, None] * layer.w13_scales[rows.weights][blocks, g]).double()
        lost = (total - bounds.reference.inner_products(layer, rows).double()).abs()
        assert bool((lost <= bounds._inner_error(layer, rows)).all())
        assert bool((lost > bounds._inner_error(replace(layer, by_warps=True), rows)).any())


def test_every_name_is_its_config_and_rules_hold() -> None:
    configs = [c for c in sweep(Arch.SM90A) if isinstance(c, ExpertsConfig)]
    assert len(configs) == len(set(configs)) == 16 and set(smoke(Arch.SM90A)) <= set(plain(Arch.SM90A)) <= set(configs)
    assert not list(plain(Arch.SM100A)) and not list(streamed(Arch.SM100A))
    for config in configs:
        assert parse_name(to_name(config)) == config and first_rejection(RULES, config).ok
    on_sm120 = list(plain(Arch.SM120F))
    assert len(on_sm120) == 6 and all(first_rejection(RULES, config).ok for config in on_sm120)
    too_tall = replace(on_sm120[0], design=Design(tile_tokens=32))
    assert first_rejection(RULES, too_tall).reason == (
        "tile of 32 rows on sm120f: two stages do not fit in 101376 bytes; 16 rows do"
    )
    assert not first_rejection(RULES, replace(on_sm120[0], design=Design(tile_tokens=128, apart=True))).ok
    wrong = replace(configs[0], design=Design(tile_tokens=24))
    assert first_rejection(RULES, wrong).reason == "tile of 24 rows: there are 8, 16, 32"
    wrong = replace(configs[0], design=Design(tile_tokens=128, streamed=True))
    assert first_rejection(RULES, wrong).reason == "streamed tile of 128 rows: there are 8, 16, 32, 64"
    of_rows = replace(configs[0].operands, group_size=0)
    wrong = replace(configs[0], operands=of_rows, design=Design(tile_tokens=8, streamed=True))
    assert first_rejection(RULES, wrong).reason == (
        "streamed weights of e4m3 without scales in groups: sums are added with their scales"
    )
    operands = Operands(dtype=DType.F16, out_dtype=DType.BF16)
    wrong = ExpertsConfig(operands=operands, design=Design(tile_tokens=8))
    assert first_rejection(RULES, wrong).reason == "weights of f16 are multiplied by activations of f16, not of bf16"
    with pytest.raises(ValueError, match="it would be written 'sm90a_fusedexperts_e4m3_bf16_rows_t8'"):
        parse_name("sm90a_fusedexperts_e4m3_bf16_plain_t8")
    with pytest.raises(ValueError, match=r"apart 't8w', expected t and a number, nothing or s, nothing or a$"):
        parse_name("sm90a_fusedexperts_e4m3_bf16_group128_t8w")


def test_more_rows_of_an_expert_choose_larger_tiles() -> None:
    rows: list[Row] = [
        row for i, config in enumerate(c for c in plain(Arch.SM90A) if c.group_size) for row in TUNING.rows(config, i)
    ]
    chosen = []
    for tokens in (1, 4, 16, 64, 512, 4096):
        sizes = (tokens * 8, 768, 2048, 128)
        call_ = ShapedCall(family="fused_experts", call_class=rows[0].call_class, sizes=sizes, alignments=(16, 16, 16))
        chosen.append(min(rows, key=lambda row, call_=call_: TUNING.model_ns(row, call_, 132)).facts.tile_tokens)
    assert chosen == sorted(chosen) and chosen[0] == 8 and 8 < chosen[2] < 128 and chosen[-2:] == [128, 128]


@pytest.mark.parametrize("config", [c for c in plain(Arch.SM90A) if c.tile_tokens == 8], ids=to_name)
def test_cases_are_right_on_the_reference_and_poisoned(config: ExpertsConfig) -> None:
    words = set()
    for case in of_config(config):
        p = case.spec
        words |= {
            p.routed,
            p.data,
            p.order,
            p.activation,
            p.adds,
            p.lent,
            p.biased,
            p.weight_on_input,
            p.mapped is None,
        }
        if p.tokens * p.weights * p.hidden < 100_000:
            assert case.run("cpu").report == "", str(case)
    assert {NONE, ONE, "integers", "random", GATE_UP, UP_GATE, True, False} <= words
    assert case.arguments("cpu")[0].isnan().all()
