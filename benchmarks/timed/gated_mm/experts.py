"""Which gated GEMMs of experts' rows are timed, and their arguments."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gemmill.families.gated_mm.config import GROUP, Result
from timed.gated_mm.layers import CHECKED_COLUMNS, CHECKED_ROWS, KINDS, after
from timed.grouped_mm.calls import KINDS as MOE_KINDS
from timed.grouped_mm.calls import MoeMaker
from timed.workload import Workload

LAYERS = ((128, 8, 768, 2048), (8, 2, 14336, 4096), (32, 8, 2048, 7168))
"""Experts, experts of a token, results and K: of Qwen3 30B A3B, of Mixtral 8x7B, and of DeepSeek V3, 32 experts a GPU."""
TOKENS = (1, 16, 64, 256, 1024, 4096)


@dataclass(frozen=True, kw_only=True)
class ExpertOperands:
    """The operands of one workload; copies differ in their routing."""

    workload: Workload
    out: Tensor
    out_scales: Tensor | None
    static_scale: Tensor | None
    a: Tensor
    weights: Tensor
    """[experts, 2 hidden, K], packed."""
    a_scales: Tensor
    b_scales: Tensor
    plain_scales: Tensor
    """Of the weights, in the order of the product alone."""
    offsets: tuple[Tensor, ...]
    token_ids: Tensor | None
    product: Tensor
    """bf16 [rows, 2 hidden]: the output of the product alone."""

    op = "grouped_mm_act_quant"

    @property
    def copies(self) -> int:
        """How many there are."""
        return len(self.offsets)

    def call(self, ops: Any, i: int) -> Callable[[], object]:
        """A call of the op with its arguments bound."""
        x = self
        given = x.out, x.out_scales, x.a, x.weights, x.a_scales, x.b_scales, x.offsets[i]
        more = *x.workload.of.activation, x.static_scale, None, x.token_ids
        return partial(ops.grouped_mm_act_quant.default, *given, *more)

    def alone(self, ops: Any, i: int) -> Callable[[], object]:
        """A call of the product alone. Its columns are not those that the op wants: times are the same."""
        x = self
        given = x.product, x.a, x.weights, x.a_scales, x.plain_scales, x.offsets[i], None, x.token_ids
        return partial(ops.grouped_mm.default, *given)

    def after(self, ops: Any) -> Callable[[], object]:
        """A call of the op after the product."""
        return after(ops, self.out, self.product, self.out_scales, self.static_scale)

    def part(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The last rows and columns of the first call, as operands of one layer, and their results."""
        x, columns = self, min(CHECKED_COLUMNS, self.workload.hidden)
        ends = x.offsets[0].tolist()
        expert = max(e for e in range(x.workload.experts) if ends[e + 1] > ends[e])
        rows = slice(max(ends[expert], ends[expert + 1] - CHECKED_ROWS), ends[expert + 1])
        of_a = torch.arange(x.workload.m, device=x.a.device)[rows] if x.token_ids is None else x.token_ids[rows].long()
        b_scales = x.b_scales[expert]
        of_b = b_scales.t()[:, -(2 * columns // GROUP) :] if x.workload.of.in_groups else b_scales[-2 * columns :]
        given = {
            "a": x.a.view(torch.uint8)[of_a].view(x.a.dtype),
            "b": x.weights[expert].t()[:, -2 * columns :],
            "a_scales": x.a_scales[of_a],
            "b_scales": of_b,
        }
        found = {"out": x.out[rows, -columns:]}
        if x.out_scales is not None:
            found["out_scales"] = x.out_scales[rows, -(columns // GROUP) :]
        return given, found


class ExpertMaker:
    """Makes operands: normal random numbers, as those of grouped GEMMs. It keeps the last layer's weights."""

    def __init__(self, device: torch.device, rotated_bytes: int) -> None:
        self._device = device
        self._plain = MoeMaker(device, rotated_bytes)
        self._generator = torch.Generator(device=device).manual_seed(0)

    def make(self, workload: Workload) -> ExpertOperands:
        """Of a workload."""
        p, n, k_groups = workload, 2 * workload.hidden, -(-workload.k // GROUP)
        kind, tokens = "fp8_groups" if p.of.in_groups else "fp8", p.m // p.top
        plain = self._plain.make(
            MOE_KINDS[kind].at(experts=p.experts, top=p.top, n=n, k=p.k, tokens=tokens, routing="random")
        )
        given = tokens if p.of.gathered else p.m
        a, a_scales = plain.a[:given], self._scales(k_groups, given).t() if p.of.in_groups else self._scales(given, 1)
        b_shape = (p.experts, 2 * -(-p.hidden // GROUP), k_groups) if p.of.in_groups else (p.experts, n)
        return ExpertOperands(
            workload=p,
            out=torch.empty((p.m, p.hidden), device=self._device, dtype=getattr(torch, p.of.result.dtype.torch_name)),
            out_scales=torch.empty((p.m, p.hidden // GROUP), device=self._device)
            if p.of.result is Result.GROUP
            else None,
            static_scale=torch.full((1,), 0.1, device=self._device) if p.of.result is Result.STATIC else None,
            a=a,
            weights=plain.b,
            a_scales=a_scales,
            b_scales=self._scales(*b_shape) / math.sqrt(p.k),
            plain_scales=plain.b_scales,
            offsets=plain.offsets,
            token_ids=torch.randint(tokens, (p.m,), device=self._device, generator=self._generator, dtype=torch.int32)
            if p.of.gathered
            else None,
            product=plain.out,
        )

    def _scales(self, *shape: int) -> Tensor:
        return torch.rand(shape, device=self._device, generator=self._generator) + 0.5


def layers_of(asked: str | None) -> Sequence[tuple[int, int, int, int]]:
    """Those asked for, as EXPERTSxTOPxRESULTSxK with commas, or the table's. Raises ValueError."""
    found = LAYERS if asked is None else [tuple(map(int, layer.split("x"))) for layer in asked.split(",")]
    if wrong := [layer for layer in found if len(layer) != len(LAYERS[0])]:
        raise ValueError(f"layer {wrong[0]} has {len(wrong[0])} numbers, expected experts x top x results x K")
    return [(experts, top, hidden, k) for experts, top, hidden, k in found]


def workloads_of(kinds: Sequence[str], layers: str | None, tokens: str | None) -> Iterator[Workload]:
    """Every layer with every number of tokens. Raises ValueError."""
    counts = TOKENS if tokens is None else tuple(map(int, tokens.split(",")))
    for experts, top, hidden, k in layers_of(layers):
        for kind in sorted((KINDS[name] for name in kinds), key=lambda kind: kind.in_groups):
            for count in counts:
                yield kind.at(m=count * top, hidden=hidden, k=k, experts=experts, top=top)
