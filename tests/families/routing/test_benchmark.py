"""Routers in the benchmarks: their sizes, and wrong results that are not timed."""

from argparse import Namespace

import pytest
import torch

from harness.contenders import WrongResult
from timed.routing.calls import KINDS, LAYERS, RouterMaker, tiny, workloads_of
from timed.routing.contenders import ROUTER_PEERS, RouterContender, RouterPeer, softmax_topk

SUBJECT = RouterContender(name="gemmill", namespace="gemmill")


@pytest.fixture
def operands():
    return RouterMaker(torch.device("cpu"), 0).make(tiny(KINDS["bf16"].at(m=9, experts=128, k=2048, topk=8)))


def test_sizes_are_those_of_layers_or_drawn_and_legal() -> None:
    named = workloads_of(Namespace(draw=None, rows="1,16"))
    assert len(named) == 2 * len(LAYERS) and str(named[1]) == "bf16 16 x 8 x 4096 x 2"
    drawn = [workloads_of(Namespace(draw=seed, draws=200, rows="")) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(p.topk <= p.experts <= 512 and p.k % 8 == 0 and p.experts % 8 == 0 and p.m for p in drawn[0])
    with pytest.raises(ValueError, match="--rows 'x' is not a number of tokens"):
        workloads_of(Namespace(draw=None, rows="1,x"))


@pytest.mark.parametrize("side", [SUBJECT, *ROUTER_PEERS], ids=lambda side: side.name)
def test_right_results_pass(operands, side) -> None:
    side.check(operands, side.call(operands, 0))


def test_wrong_results_are_not_timed(operands) -> None:
    with pytest.raises(WrongResult, match="logits are farther from the exact ones"):
        SUBJECT.check(operands, SUBJECT.call(operands, 1))  # of other weights
    with pytest.raises(WrongResult, match="logits are farther from the exact ones"):
        alone = RouterPeer(name="alone")
        alone.check(operands, alone.call(operands, 1))
    smallest = RouterPeer(name="wrong", largest=lambda logits, x: softmax_topk(-logits, x))
    with pytest.raises(WrongResult, match="weights are not those of its largest logits"):
        smallest.check(operands, smallest.call(operands, 0))
