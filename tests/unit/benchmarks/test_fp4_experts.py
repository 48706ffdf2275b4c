"""Layers of 4-bit experts in the benchmarks: operands, their check, and vLLM's layer with Marlin, whose ops torch stands in for."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gemmill.compat import fp4_experts
from gemmill.formats.fp4_blocks import Fp4Blocks
from harness.contenders import WrongResult
from peers.marlin import Ops, gates_first, marlin_layer, packed_layer
from peers.vllm_plugin import plugin_layer
from timed.fused_experts.calls import BASE, KINDS, ExpertsMaker, ExpertsOperands, active
from timed.fused_experts.contenders import ExpertsContender

E, TOP, K, N, M = 4, 2, 256, 192, 17


@pytest.fixture(autouse=True)
def two_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the routing: each takes a whole layer by the reference."""
    monkeypatch.setattr("timed.fused_experts.calls.MOST_COPIES", 2)


class Once:
    """A timer that makes each call once."""

    def prepare(self, calls: list[Callable[[], object]], fewest: int) -> list[object]:
        return [call() for call in calls]


def made(kind: str) -> ExpertsOperands:
    workload = KINDS[kind].at(experts=E, top=TOP, hidden=K, inner=N, tokens=M)
    return ExpertsMaker(torch.device("cpu"), 1).make(workload)


def values(x: ExpertsOperands) -> tuple[Tensor, Tensor]:
    """Of both weights, the first's gates before its ups."""
    found = []
    for blocks, bases, k in ((x.w13, x.w13_scales, K), (x.w2, x.w2_scales, N)):
        each = [
            Fp4Blocks(format=x.workload.of.format, n=len(base), k=k, blocks=of, base=base).weights()[0]
            for of, base in zip(blocks, bases, strict=True)
        ]
        found.append(torch.stack([(gates_first(w) if k == K else w).values().float() * BASE for w in each]))
    return found[0], found[1]


def stand_in(x: ExpertsOperands, mistake: str = "") -> Ops:
    """As vLLM 0.33 calls its ops; weights are known by their shape."""
    full = dict(zip((2 * N, K), values(x), strict=True))

    def align(ids: Tensor, experts: int, block: int, order: Tensor, whose: Tensor, end: Tensor, _: None) -> None:
        order.fill_(ids.numel())
        place = 0
        for expert in range(experts):
            pairs = (ids.flatten() == expert).nonzero().flatten().int()
            order[place : place + len(pairs)] = pairs
            blocks = -(-len(pairs) // block)
            whose[place // block : place // block + blocks] = expert
            place += blocks * block
        end.fill_(place)

    def multiply(
        a: Tensor, out: Tensor, q: Tensor, bias: None, scales: Tensor, a_scales: None, factors: Any, *more: Any
    ) -> None:
        zeros, locks, order, whose, end, weights, block, top, weighed, _kind, m, n, k, *flags = more
        assert (zeros, bias, a_scales) == (None, None, None) and (m, n, k) == (len(a), out.shape[1], a.shape[1])
        assert flags == [False, True, False, -1, -1, -1] and len(locks) and q.shape == (E, k // 16, 2 * n)
        assert scales.shape == (E, k // x.workload.of.format.group, n) and (factors is None) == (
            x.workload.kind == "mxfp4"
        )
        for place in range(int(end)):
            pair = int(order[place])
            if pair < len(weights.flatten()):
                row = full[n][int(whose[place // block])] @ a[pair // top].float()
                by = weights.flatten()[pair] if weighed and mistake != "weights" else 1.0
                out[pair] = (row * by).to(out.dtype)

    def activate(out: Tensor, rows: Tensor) -> None:
        gates, ups = rows.float().chunk(2, dim=1)
        out.copy_(
            torch.nn.functional.silu(ups if mistake == "order" else gates) * (gates if mistake == "order" else ups)
        )

    return Ops(
        align=align, multiply=multiply, activate=activate, sum=lambda parts, out: torch.sum(parts, dim=1, out=out)
    )


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_layers_of_4_bits_are_timed(kind: str) -> None:
    x = made(kind)
    ours, marlin = ExpertsContender(name="gemmill", namespace="gemmill"), marlin_layer(stand_in(x))
    assert marlin.takes(x.workload) and ours.takes(x.workload)
    assert [len(c.prepare(x, Once(), 1)) for c in (ours, marlin)] == [x.copies] * 2
    bytes_ = E * 3 * K * N * (0.5 + 1 / x.workload.of.format.group)
    assert x.workload.bytes == int(bytes_ * active(x.workload) / E) + 4 * M * K


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_the_layer_with_the_plugin_is_timed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = made(kind)
    monkeypatch.setattr(fp4_experts, "refusal", lambda layer: None)
    plugin = plugin_layer(stand_in(x))
    assert plugin.takes(x.workload) and len(plugin.prepare(x, Once(), 1)) == x.copies
    with pytest.raises(WrongResult):
        plugin_layer(stand_in(x, "order")).prepare(x, Once(), 1)
    monkeypatch.setattr(fp4_experts, "refusal", lambda layer: "none")
    with pytest.raises(RuntimeError, match="no variant for the grouped GEMMs of"):
        plugin_layer(stand_in(x)).prepare(x, Once(), 1)


@pytest.mark.parametrize("mistake", ["weights", "order"])
def test_a_wrong_layer_is_not_timed(mistake: str) -> None:
    x = made("nvfp4")
    with pytest.raises(WrongResult):
        marlin_layer(stand_in(x, mistake)).prepare(x, Once(), 1)


def test_weights_of_other_kinds_are_not_marlins() -> None:
    x = made("fp8_groups")
    assert not marlin_layer(stand_in(made("nvfp4"))).takes(x.workload)


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_scales_carry_the_base(kind: str) -> None:
    (_, scales, factors), _ = packed_layer(made(kind))
    if kind == "mxfp4":  # an eighth to one, by the base
        assert factors is None and set(scales.float().flatten().tolist()) == {BASE / 8, BASE / 4, BASE / 2, BASE}
    else:
        assert factors.shape == (E,) and len(set(factors.tolist())) == 1
