"""The kernel of routers on a GPU: logits that no random case has, and rows in any batch."""

import pytest
import torch

import gemmill
from gemmill.families.routing.reference import largest

EXPERTS = (1, 8, 33, 128, 160, 256, 512)


@pytest.mark.parametrize("experts", EXPERTS)
def test_equal_logits_are_ordered_as_in_the_reference(experts: int) -> None:
    """The weights are the identity, so logits are x itself."""
    g = torch.Generator("cuda").manual_seed(experts)
    values = torch.tensor([0.0, -0.0, 1.0, 1.0, -3.0, torch.inf, -torch.inf, torch.nan], device="cuda")
    places = torch.randint(0, len(values), (50, experts), generator=g, device="cuda")
    logits = values[places].bfloat16()
    k = -(-experts // 8) * 8
    x = torch.zeros(50, k, dtype=torch.bfloat16, device="cuda")
    x[:, :experts] = logits.masked_fill(~logits.isfinite(), 5.0)
    weight = torch.eye(experts, k, dtype=torch.bfloat16, device="cuda")
    topk = min(experts, 8)
    found, weights, ids = gemmill.router_topk(x, weight, topk)
    wanted, wanted_ids = largest(found, topk, renormalize=True)
    assert torch.equal(found, x[:, :experts] + 0.0)
    assert torch.equal(ids, wanted_ids) and torch.allclose(weights, wanted, rtol=1e-5, atol=0)


@pytest.mark.parametrize("experts", EXPERTS)
def test_a_token_has_the_same_bits_in_any_batch(experts: int) -> None:
    g = torch.Generator("cuda").manual_seed(experts)
    x = torch.randn(200, 2048, generator=g, device="cuda").bfloat16()
    weight = torch.randn(experts, 2048, generator=g, device="cuda").bfloat16()
    whole = gemmill.router_topk(x, weight, min(experts, 6), renormalize=False)
    for row in (0, 15, 16, 131, 199):
        alone = gemmill.router_topk(x[row : row + 1], weight, min(experts, 6), renormalize=False)
        assert all(torch.equal(many[row : row + 1], one) for many, one in zip(whole, alone, strict=True))


def test_nan_comes_first_and_fills_the_weights() -> None:
    x = torch.zeros(3, 16, dtype=torch.bfloat16, device="cuda")
    x[1, 5], x[2, 2] = torch.nan, torch.inf
    weight = torch.eye(16, dtype=torch.bfloat16, device="cuda")
    logits, weights, ids = gemmill.router_topk(x, weight, 2)
    wanted, wanted_ids = largest(logits, 2, renormalize=True)
    assert torch.equal(ids, wanted_ids)
    assert torch.equal(weights.isnan(), wanted.isnan()) and torch.equal(weights[0], wanted[0])
