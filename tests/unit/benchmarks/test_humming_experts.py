"""Humming's layers of experts: a layer that computes as its package says passes for right, and one that errs is not timed."""

from typing import Any

import pytest
import torch
from torch import Tensor

from gemmill.formats.quantise import BlockScaled
from gemmill.vocab.format import MXFP4, NVFP4
from harness.contenders import WrongResult
from harness.timers import DryTimer
from peers.humming import WEIGHTS
from peers.humming_experts import SILU, Humming, HummingExperts
from timed.fused_experts.calls import TINY, ExpertsMaker, workload_of

BLOCK = 4


class Layer:
    """A product of indexed rows: pair i of a list multiplies row i / top_k by its block's expert."""

    def __init__(self, weight_config: dict[str, str], num_experts: int, **told: Any) -> None:
        self.format = NVFP4 if weight_config == WEIGHTS["nvfp4"] else MXFP4
        assert ("input_config" in told) is (self.format == MXFP4) and told["torch_dtype"] is torch.bfloat16
        self.humming_config, self.experts = self, num_experts

    def load_from_tensors(self, tensors: dict[str, Tensor]) -> None:
        codes, scales = tensors["weight"], tensors["weight_scale"].view(torch.uint8)
        of = [BlockScaled(format=self.format, codes=codes[e], scales=scales[e]).values() for e in range(self.experts)]
        self.values = torch.stack(of)

    def transform(self) -> None:
        self.is_ready = True

    def __call__(self, inputs: Tensor, outputs: Tensor, **told: Any) -> None:
        assert self.is_ready and told["compute_config"] == {"gemm_type": "indexed"}
        pairs = len(outputs)
        assert told["valid_shape_m"] == pairs == len(inputs) * told["top_k"]
        for place in range(int(told["num_tokens_padded"])):
            pair = int(told["sorted_ids"][place])
            if pair < pairs:
                row = pair // told["top_k"]
                a = inputs[row].double() * (told["input_scale"][row].double() if "input_scale" in told else 1.0)
                outputs[pair] = (self.values[int(told["expert_ids"][place // BLOCK])] @ a).to(outputs.dtype)


def align(ids: Tensor, experts: int, block: int, order: Tensor, whose: Tensor, end: Tensor, mapped: None) -> None:
    order.fill_(ids.numel())
    place = 0
    for expert in range(experts):
        pairs = (ids.flatten() == expert).nonzero().flatten().int()
        order[place : place + len(pairs)] = pairs
        blocks = -(-len(pairs) // block)
        whose[place // block : place // block + blocks] = expert
        place += blocks * block
    end.fill_(place)


def process(config: Layer, inputs: Tensor, **told: Any) -> tuple[Tensor, None, Tensor | None]:
    assert told == SILU
    gates, ups = inputs.float().chunk(2, dim=1)
    rows = torch.nn.functional.silu(gates) * ups
    if config.format == NVFP4:
        return rows.bfloat16(), None, None
    scales = rows.abs().amax(dim=1, keepdim=True) / 448
    return (rows / scales).to(torch.float8_e4m3fn), None, scales


def contender(unweighed: bool = False) -> HummingExperts:
    def summed(parts: Tensor, weights: Tensor, out: Tensor) -> None:
        out.copy_((parts.float() * (1.0 if unweighed else weights[..., None])).sum(dim=1))

    tiles = [[0, 1 << 30, {"block_shape": [BLOCK, 64, 64]}]]
    of = Humming(
        layer=Layer, configs=WEIGHTS, tiles=lambda *given, **told: tiles, process=process, align=align, sum=summed
    )
    return HummingExperts(of=of)


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4_e4m3"])
def test_layers_are_timed_if_they_are_right(kind: str) -> None:
    x = ExpertsMaker(torch.device("cpu"), 0).make(workload_of(kind, TINY, 9))
    right = contender()
    assert right.takes(x.workload) and not right.takes(workload_of("fp8_groups", TINY, 9))
    assert right.prepare(x, DryTimer(), 1)
    with pytest.raises(WrongResult, match="of its length away"):
        contender(unweighed=True).prepare(x, DryTimer(), 1)
