"""Which gated GEMMs are timed, and their arguments."""

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from gemmill.families.gated_mm.config import Result
from timed.gated_mm import experts as gated_experts
from timed.gated_mm.experts import ExpertOperands
from timed.gated_mm.layers import (
    CHECKED_COLUMNS,
    CHECKED_ROWS,
    ENDS,
    FINE,
    GATHERED,
    INTEGERS,
    KINDS,
    PREFIX,
    RESULTS,
    SCALES,
    after,
)
from timed.workload import Workload

LAYERS = ((14336, 4096), (28672, 8192), (18432, 7168))
"""Results and K: of Llama 3 8B and 70B, and DeepSeek V3's dense layers."""
ROWS = (1, 16, 64, 256, 4096)
DRAWN = ((1, 4096), (1024, 36864), (1024, 16384))
"""Least and most rows, results and K of random calls."""
DRAWN_STEP = 128
MOST_COPIES = 16
INT8_DEVIATION = 32
"""Deviation of int8 operands."""


@dataclass(frozen=True, kw_only=True)
class GatedOperands:
    """The operands of one workload; copies differ in their weights."""

    workload: Workload
    out: Tensor
    out_scales: Tensor | None
    static_scale: Tensor | None
    a: Tensor
    weights: tuple[Tensor, ...]
    """[K, 2 hidden], column-major."""
    a_scales: Tensor
    b_scales: Tensor
    product: Tensor
    """bf16 [M, 2 hidden]: the output of the product alone."""

    op = "scaled_mm_act_quant"

    @property
    def copies(self) -> int:
        """How many there are."""
        return len(self.weights)

    def call(self, ops: Any, i: int) -> Callable[[], object]:
        """A call of the op with its arguments bound."""
        x = self
        given = x.out, x.out_scales, x.a, x.weights[i], x.a_scales, x.b_scales
        return partial(ops.scaled_mm_act_quant.default, *given, *x.workload.of.activation, x.static_scale)

    def alone(self, ops: Any, i: int) -> Callable[[], object]:
        """A call of the product alone. Its columns are not those that the op wants: times are the same."""
        x = self
        return partial(ops.cutlass_scaled_mm.default, x.product, x.a, x.weights[i], x.a_scales, x.b_scales, None)

    def after(self, ops: Any) -> Callable[[], object]:
        """A call of the op after the product."""
        return after(ops, self.out, self.product, self.out_scales, self.static_scale)

    def part(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The last rows and columns of the first call, as operands of their own, and their results."""
        x, rows, columns = self, slice(-CHECKED_ROWS, None), min(CHECKED_COLUMNS, self.workload.hidden)
        group = x.workload.of.group
        of_b = x.b_scales[:, -(2 * columns // group) :] if x.workload.of.in_groups else x.b_scales[-2 * columns :]
        given = {
            "a": x.a[rows],
            "b": x.weights[0][:, -2 * columns :],
            "a_scales": x.a_scales[rows],
            "b_scales": of_b,
        }
        found = {"out": x.out[rows, -columns:]}
        if x.out_scales is not None:
            found["out_scales"] = x.out_scales[rows, -(columns // group) :]
        return given, found


class GatedMaker:
    """Makes operands: normal random numbers. It keeps the last layer's weights."""

    def __init__(self, device: torch.device, rotated_bytes: int) -> None:
        self._device, self._rotated_bytes = device, rotated_bytes
        self._of_experts = gated_experts.ExpertMaker(device, rotated_bytes)
        self._weights: tuple[Tensor, ...] = ()
        self._generator = torch.Generator(device=device).manual_seed(0)

    def make(self, workload: Workload) -> GatedOperands | ExpertOperands:
        """Of a workload."""
        if workload.of.of_experts:
            self._weights = ()
            return self._of_experts.make(workload)
        p, n, k_groups = workload, 2 * workload.hidden, -(-workload.k // workload.of.group)
        if not self._weights or (self._weights[0].shape, self._weights[0].dtype) != ((p.k, n), p.of.dtype):
            self._weights = ()
            count = min(MOST_COPIES, -(-self._rotated_bytes // (n * p.k)))
            self._weights = tuple(self._numbers(p, n, p.k).t() for _ in range(count))
        return GatedOperands(
            workload=p,
            out=torch.empty((p.m, p.hidden), device=self._device, dtype=getattr(torch, p.of.result.dtype.torch_name)),
            out_scales=torch.empty((p.m, p.hidden // p.of.group), device=self._device) if p.of.result.group else None,
            static_scale=torch.full((1,), 0.1, device=self._device) if p.of.result is Result.STATIC else None,
            a=self._numbers(p, p.m, p.k),
            weights=self._weights,
            a_scales=self._scales(k_groups, p.m).t() if p.of.in_groups else self._scales(p.m, 1),
            b_scales=(self._scales(k_groups, n // p.of.group) if p.of.in_groups else self._scales(n))
            / self._largeness(p),
            product=torch.empty((p.m, n), device=self._device, dtype=torch.bfloat16),
        )

    def _numbers(self, p: Workload, *shape: int) -> Tensor:
        numbers = torch.randn(shape, device=self._device, generator=self._generator)
        return (
            numbers.mul_(INT8_DEVIATION).round_().clamp_(-128, 127).to(p.of.dtype)
            if p.of.is_of_integers
            else numbers.to(p.of.dtype)
        )

    def _largeness(self, p: Workload) -> float:
        """That of a sum, so that scaled ones are near 1."""
        return math.sqrt(p.k) * (INT8_DEVIATION**2 if p.of.is_of_integers else 1)

    def _scales(self, *shape: int) -> Tensor:
        return torch.rand(shape, device=self._device, generator=self._generator) + 0.5


def workloads_of(options: Namespace) -> list[Workload]:
    """Every layer with every number of rows, then those of experts. Raises ValueError."""
    names = options.op.split(",")
    if unknown := [name for name in names if name not in KINDS]:
        raise ValueError(f"op {unknown[0]!r} is none of {', '.join(KINDS)}")
    layers = layers_of(options.layers)
    rows = ROWS if options.rows is None else tuple(map(int, options.rows.split(",")))
    of_experts = [name for name in names if KINDS[name].of_experts]
    dense = [KINDS[name] for name in names if name not in of_experts]
    if options.draw is not None:
        random = Random(options.draw)
        sizes = [_drawn(random) for _ in range(options.draws)]
        found = [kind.at(m=m, hidden=h, k=k) for m, h, k in sizes for kind in dense]
    else:
        found = [kind.at(m=m, hidden=h, k=k) for h, k in layers for kind in dense for m in rows]
    return [*found, *gated_experts.workloads_of(of_experts, options.expert_layers, options.tokens)]


def _drawn(random: Random) -> tuple[int, int, int]:
    """Rows, results and K, each as likely in one octave as in another."""
    rows, *layer = (least * (most / least) ** random.random() for least, most in DRAWN)
    hidden, k = (DRAWN_STEP * round(x / DRAWN_STEP) for x in layer)
    return round(rows), hidden, k


def layers_of(asked: str | None) -> list[tuple[int, int]]:
    """The table's, the first so many of them, or those asked for as RESULTSxK with commas. Raises ValueError."""
    if asked is None or asked.isdigit():
        return list(LAYERS[: None if asked is None else int(asked)])
    found = [tuple(map(int, layer.split("x"))) for layer in asked.split(",")]
    if wrong := [layer for layer in found if len(layer) != 2]:
        raise ValueError(f"layer {wrong[0]} has {len(wrong[0])} numbers, expected results x K, or a number of layers")
    return [(hidden, k) for hidden, k in found]


def add_options(parser: ArgumentParser) -> None:
    """Of the gated GEMMs alone."""
    parser.add_argument(
        "--op",
        "--ops",
        default="groups,bf16",
        help=f"kinds, with commas, of {', '.join(RESULTS)}, or with {ENDS[1]} and then {SCALES[1]}, {FINE} or {INTEGERS} behind; "
        f"{PREFIX} before them stands for rows of experts, {GATHERED} behind for gathered ones",
    )
    parser.add_argument("--draw", type=int, metavar="SEED", help="random rows and dense layers in place of the table's")
    parser.add_argument("--draws", type=int, default=24, metavar="N", help="of them so many")
    parser.add_argument("--rows", help=f"with commas; {', '.join(map(str, ROWS))} by default")
    parser.add_argument("--layers", help=f"the first so many of {len(LAYERS)} layers, or RESULTSxK with commas")
    parser.add_argument(
        "--tokens", help=f"of experts, with commas; {', '.join(map(str, gated_experts.TOKENS))} by default"
    )
    parser.add_argument("--expert-layers", help="EXPERTSxTOPxRESULTSxK with commas; the table's by default")


def tiny(p: Workload) -> Workload:
    more = {"experts": 4, "top": 2} if p.of.of_experts else {}
    return p.resized(m=2 * min(p.m, 5) if more else min(p.m, 9), hidden=256, k=128, **more)


def small(name: str) -> Workload:
    more = {"experts": 4, "top": 2} if KINDS[name].of_experts else {}
    return KINDS[name].at(m=16, hidden=256, k=256, **more)
