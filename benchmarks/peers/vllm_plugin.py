"""vLLM's layer of 4-bit experts with gemmill's plugin: grouped GEMMs between vLLM's kernels, as vLLM calls them in Marlin's place."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gemmill.compat import fp4_experts
from gemmill.formats.quantise import BlockScaled
from peers.marlin import Ops, all_weights, gates_first
from timed.fused_experts.calls import ExpertsOperands
from timed.fused_experts.contenders import ExpertsPeer

NAME = "vllm with gemmill's plugin"


def plugin_layer(ops: Ops) -> ExpertsPeer:
    """Rows sorted by torch, two grouped GEMMs of gemmill's, vLLM's activation between and vLLM's sum behind."""
    made: list[tuple[Tensor, Any]] = []

    def packed(x: ExpertsOperands) -> Any:
        """Both weights, made once of each layer's. Raises RuntimeError where the build has no variant."""
        if not made or made[0][0] is not x.w13:
            made[:] = [(x.w13, _packed(x))]
        return made[0][1]

    return ExpertsPeer(
        name=NAME, bind=lambda x, i: partial(_layer, ops, x, x.ids[i], *packed(x)), kinds=("nvfp4", "mxfp4")
    )


def _packed(x: ExpertsOperands) -> tuple[fp4_experts.Weights, ...]:
    """As the plugin packs a checkpoint's; the first's gates before its ups. Bases, one power of two, become a factor of all."""
    p, base = x.workload, x.w13_scales[0, :1]
    first = gates_first(all_weights(p.of.format, x.w13, x.w13_scales, p.hidden), p.experts)
    second = all_weights(p.of.format, x.w2, x.w2_scales, p.inner)
    parts = tuple(_part(weights, p.experts, base) for weights in (first, second))
    made = fp4_experts.packed(parts, x.x.dtype, x)
    if made is None:
        raise RuntimeError(f"the build has no variant for the grouped GEMMs of {p}")
    return made


def _part(weights: BlockScaled, experts: int, base: Tensor) -> fp4_experts.Part:
    codes, scales = (rows.unflatten(0, (experts, -1)) for rows in (weights.codes, weights.scales))
    if weights.format.has_global_scale:
        return codes, scales, base.expand(experts).clone()
    return codes, (scales.int() + base.log2().int()).to(torch.uint8), None


def _layer(ops: Ops, x: ExpertsOperands, ids: Tensor, first: fp4_experts.Weights, second: fp4_experts.Weights) -> None:
    rows = fp4_experts.multiplied(x.x, first, second, partial(_activated, ops.activate), x.weights, ids)
    ops.sum(rows, x.out)


def _activated(activate: Callable[..., object], rows: Tensor) -> Tensor:
    out = rows.new_empty(len(rows), rows.shape[1] // 2)
    activate(out, rows)
    return out
