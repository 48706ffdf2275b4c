"""Routers on CPU tensors: the reference, sentences for bad input, the cases' judgement, rules, names and the choice."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.families.routing.cases import CASES, SHAPES, WEIGHT_ERROR, CallSpec, RouterCase, fault_of
from gemmill.families.routing.config import MOST_EXPERTS, Operands, RoutingConfig
from gemmill.families.routing.family import FAMILY, ROUTERS
from gemmill.families.routing.reference import largest, logits_of
from gemmill.families.routing.selections import default, smoke
from gemmill.family import ALONE, first_rejection
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Arch, DType

BF16 = RoutingConfig(operands=Operands(dtype=DType.BF16))


def drawn(
    tokens: int = 6, experts: int = 24, k: int = 40, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, k, generator=g, dtype=torch.float32) for rows in (tokens, experts))
    return x.to(dtype), weight.to(dtype)


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_results_are_those_of_softmax_and_topk(dtype: torch.dtype, renormalize: bool) -> None:
    x, weight = drawn(dtype=dtype)
    logits, weights, ids = gemmill.router_topk(x, weight, 5, renormalize=renormalize)
    assert torch.equal(logits, (x.double() @ weight.double().t()).to(dtype))
    wanted, wanted_ids = torch.softmax(logits.double(), dim=1).topk(5)
    wanted = wanted / wanted.sum(dim=1, keepdim=True) if renormalize else wanted
    assert ids.dtype == torch.int32 and torch.equal(ids.long(), wanted_ids)
    assert weights.dtype == torch.float32 and torch.allclose(weights.double(), wanted, rtol=1e-6, atol=0)


def test_of_equal_logits_the_lower_expert_comes_first_and_nan_before_all() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, -0.0, 0.0], [0.0, torch.inf, torch.nan, 3.0, 3.0]])
    weights, ids = largest(logits, 4, renormalize=True)
    assert ids.tolist() == [[1, 2, 0, 3], [2, 1, 3, 4]]
    assert weights[0, :2].tolist() == [weights[0, 0].item()] * 2 and weights[0].sum().item() == pytest.approx(1)


def test_a_token_has_the_same_results_in_any_batch() -> None:
    x, weight = drawn(tokens=40)
    whole = gemmill.router_topk(x, weight, 3)
    alone = gemmill.router_topk(x[17:18], weight, 3)
    assert all(torch.equal(many[17:18], one) for many, one in zip(whole, alone, strict=True))
    (config,) = (c for c in default(Arch.SM90A) if c.dtype is DType.BF16)
    assert FAMILY.tuning.order is not None and FAMILY.tuning.order(config) is ALONE


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            lambda x, w: (x, w[:, :32], 4),
            r"x is \[M, K\] = \[6, 40\] and weight is \[E, K\] = \[24, 32\]: K is 40 in x",
        ),
        (lambda x, w: (x.half(), w, 4), "weight is bfloat16 and x is float16: they must have the same dtype"),
        (lambda x, w: (x.float(), w.float(), 4), "router_topk: x is float32, expected bfloat16 or float16"),
        (lambda x, w: (x[:, :36], w[:, :36], 4), "rows of x and weight have 36 elements: expected a multiple of 8"),
        (lambda x, w: (x, w, 33), "router_topk: topk is 33: kernels take the largest 1 to 32 logits of a token"),
        (lambda x, w: (x, w[:3], 4), r"topk_ids is \[6, 4\]: kernels take the largest 1 to 32 logits of a token, of 3"),
        (lambda x, w: (x, w.repeat(22, 1), 4), "of 528 experts: kernels have room for the logits of 1 to 512"),
        (
            lambda x, w: (torch.cat([x, x[:, :4]], 1)[:, :40], w, 4),
            r"x has strides \[44, 1\]: rows lie a multiple of 8",
        ),
        (lambda x, w: (x.flatten()[4:-36].view(5, 40), w, 4), "x begins .* aligned"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(
    changed: Callable[..., tuple[Tensor, Tensor, int]], sentence: str
) -> None:
    x, weight, topk = changed(*drawn())
    with pytest.raises(RuntimeError, match=sentence):
        gemmill.router_topk(x, weight, topk)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_rows_of_padding_have_no_experts(dtype: torch.dtype) -> None:
    x, weight = drawn()
    plain = gemmill.router_topk(x, weight, 4)
    mask = torch.tensor([0, 1, 0, 0, 1, 0]).to(dtype)
    found = gemmill.router_topk(x, weight, 4, is_padding=mask)
    assert torch.equal(found[2][mask.bool()], torch.full((2, 4), -1, dtype=torch.int32))
    assert torch.equal(found[2][~mask.bool()], plain[2][~mask.bool()])
    assert torch.equal(found[0], plain[0]) and torch.equal(found[1], plain[1])
    with pytest.raises(RuntimeError, match=r"is_padding has shape \[5\]"):
        gemmill.router_topk(x, weight, 4, is_padding=mask[:5])


def test_strides_of_dimensions_of_size_one_do_not_matter() -> None:
    x, weight = drawn(tokens=1)
    odd = x.as_strided((1, 40), (3, 1))
    assert all(
        torch.equal(a, b)
        for a, b in zip(gemmill.router_topk(odd, weight, 2), gemmill.router_topk(x, weight, 2), strict=True)
    )


def test_no_token_is_no_work_and_meta_tensors_have_shapes() -> None:
    x, weight = drawn()
    assert [list(y.shape) for y in gemmill.router_topk(x[:0], weight, 4)] == [[0, 24], [0, 4], [0, 4]]
    found = gemmill.router_topk(x.to("meta"), weight.to("meta"), 4)
    assert [list(y.shape) for y in found] == [[6, 24], [6, 4], [6, 4]] and found[0].device.type == "meta"


def test_cases_pass_and_reach_all_numbers_of_experts_that_a_lane_has() -> None:
    for config in default(Arch.SM90A):
        assert [case for case in CASES.of_config(config) if case.run("cpu").report] == []
    assert {experts for _, experts, *_ in SHAPES} >= {128, 256, MOST_EXPERTS}


@pytest.mark.parametrize("broken", ["logits", "ids", "weights"])
def test_the_judge_finds_a_wrong_result(broken: str) -> None:
    x, weight = drawn()
    logits, weights, ids = gemmill.router_topk(x, weight, 4)
    if broken == "logits":
        logits[2, 3] += 0.25
    elif broken == "ids":
        ids[1, :2] = ids[1, :2].flip(0)
    else:
        weights[0, 0] *= 1 + 2 * WEIGHT_ERROR
    assert broken in fault_of(logits, weights, ids, x, weight, renormalize=True).replace("experts", "ids")


def test_a_sum_of_float32_is_within_the_bound_and_one_without_a_product_is_not() -> None:
    x, weight = drawn(k=512)
    wanted = logits_of(x, weight)
    sums = (x.float() @ weight.float().t()).to(x.dtype)
    assert not fault_of(sums, *largest(sums, 3, renormalize=True), x, weight, renormalize=True)
    missing = (wanted - (x[:, :1].double() @ weight[:, :1].double().t())).to(x.dtype)
    assert "logits" in fault_of(missing, *largest(missing, 3, renormalize=True), x, weight, renormalize=True)


def test_names_rules_and_selections() -> None:
    assert [to_name(config) for config in default(Arch.SM90A)] == ["sm90a_routing_bf16", "sm90a_routing_f16"]
    assert list(smoke(Arch.SM90A)) == [BF16] and parse_name("sm90a_routing_bf16") == BF16
    assert not list(default(Arch.SM100A)) and not list(smoke(Arch.SM100A))
    refused = RoutingConfig(operands=Operands(dtype=DType.BF16), arch=Arch.SM100A)
    assert "sm90a" in first_rejection(ROUTERS.rules, refused).reason
    with pytest.raises(ValueError, match=r"^dtype=e4m3: routers multiply bf16 or f16"):
        Operands(dtype=DType.E4M3)


def test_a_case_says_what_it_calls() -> None:
    case = RouterCase(spec=CallSpec(m=2, experts=8, k=16, topk=2, pad=8, data="integers"))
    assert str(case) == "2 tokens, 8 experts, K = 16, topk 2; bf16; renormalised; rows 8 apart; exact"
