"""Humming's layers of experts as a contender: two products of indexed rows, activation and codes between, a weighed sum.

Rows are sorted by vLLM's kernel. Weights are random ones of its own of the same sizes, and its result is compared with theirs. It
compiles a kernel for each product and its tile with NVRTC at the first call: seconds each.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gemmill.formats.quantise import BlockScaled
from harness.contenders import CheckedCalls, WrongResult
from timed.fused_experts.calls import ExpertsOperands
from timed.fused_experts.contenders import CHECKED_TOKENS
from timed.workload import Workload

KINDS = {"nvfp4": {}, "mxfp4_e4m3": {"input_config": {"dtype": "float8e4m3", "quant_mode": "dynamic_token"}}}
"""Kinds of workloads, and how its layers take rows."""
SCALES = {"nvfp4": (24, 32), "mxfp4_e4m3": (120, 124)}
"""Bytes of random scales, from one below the other: small, so that sums are no larger than rows."""
COMPUTE = {"gemm_type": "indexed"}
SILU = {"activation_type": "binary_split", "activation_impl": "(a / (1.f + expf(-a))) * b"}
MOST_ERROR = 0.08
"""The norm of an error over that of the result: rows are rounded to e4m3 twice."""


@dataclass(frozen=True, kw_only=True)
class Humming:
    """Names of its package, and the kernels around its products."""

    layer: Callable[..., Any]
    """Its HummingLayer."""
    configs: dict[str, dict[str, str]]
    """Of weights, by the name of a format."""
    tiles: Callable[..., Any]
    """Its get_heuristics_config."""
    process: Callable[..., Any]
    """Its may_process_input."""
    align: Callable[..., object]
    """vLLM's moe_align_block_size."""
    sum: Callable[[Tensor, Tensor, Tensor], None]


@dataclass(frozen=True, kw_only=True)
class Product:
    """A layer of Humming's, and its weights as a checkpoint has them."""

    layer: Any
    codes: Tensor
    """uint8 [experts, N, K / 2]"""
    scales: Tensor
    """uint8 [experts, N, K / group]"""


@dataclass(frozen=True, kw_only=True)
class HummingExperts(CheckedCalls):
    """The layer as vLLM computes it by Humming."""

    of: Humming
    name: str = "humming"
    complete: bool = True
    made: list[tuple[object, tuple[Product, Product]]] = field(default_factory=list)
    """Of the last layer."""

    def takes(self, workload: Workload) -> bool:
        """Whether weights are of one of its kinds."""
        return workload.kind in KINDS

    def call(self, operands: ExpertsOperands, i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        return partial(self._layer, operands, operands.ids[i], *self._products(operands.workload, operands.x.device))

    def check(self, operands: ExpertsOperands, call: Callable[[], object]) -> None:
        """Hold the last tokens against float64. Raises WrongResult."""
        x, p = operands, operands.workload
        x.out.fill_(torch.nan)
        call()
        first, second = self._products(p, x.x.device)
        for token in range(p.tokens)[-CHECKED_TOKENS:]:
            exact = torch.zeros(p.hidden, dtype=torch.float64, device=x.x.device)
            for expert, weight in zip(x.ids[0][token].tolist(), x.weights[token].tolist(), strict=True):
                gate, up = (_values(p, first, expert) @ x.x[token].double()).chunk(2)
                exact += weight * (_values(p, second, expert) @ (torch.nn.functional.silu(gate) * up))
            error = float((x.out[token].double() - exact).norm() / exact.norm())
            if not error <= MOST_ERROR:
                raise WrongResult(f"wrong result of {p}: {error:.3g} of its length away")

    def _products(self, p: Workload, device: torch.device) -> tuple[Product, Product]:
        key = p.kind, p.experts, p.hidden, p.inner
        if not self.made or self.made[0][0] != key:
            self.made.clear()
            self.made[:] = [
                (key, (self._made(p, 2 * p.inner, p.hidden, device), self._made(p, p.hidden, p.inner, device)))
            ]
        return self.made[0][1]

    def _made(self, p: Workload, n: int, k: int, device: torch.device) -> Product:
        format, (least, end) = p.of.format, SCALES[p.kind]
        codes = torch.randint(256, (p.experts, n, k // 2), dtype=torch.uint8, device=device)
        scales = torch.randint(least, end, (p.experts, n, k // format.group), dtype=torch.uint8, device=device)
        config, more = dict(self.of.configs[str(format)]), {name: dict(told) for name, told in KINDS[p.kind].items()}
        sizes = {"shape_n": n, "shape_k": k, "num_experts": p.experts}
        with torch.device(device):
            layer = self.of.layer(**sizes, weight_config=config, torch_dtype=torch.bfloat16, **more)
        tensors = {"weight": codes, "weight_scale": scales}
        if format.has_global_scale:
            ones = torch.ones(p.experts, device=device)  # one an expert: its state takes no second size
            tensors |= {"weight_scale": scales.view(torch.float8_e4m3fn), "weight_scale_2": ones}
        layer.load_from_tensors(tensors)
        layer.transform()
        return Product(layer=layer, codes=codes, scales=scales)

    def _layer(self, x: ExpertsOperands, ids: Tensor, first: Product, second: Product) -> None:
        p, rows = x.workload, ids.numel()
        product, parts = x.x.new_empty((rows, 2 * p.inner)), x.x.new_empty((rows, p.hidden))
        lists: dict[int, dict[str, Tensor]] = {}
        self._multiply(first, x.x, product, ids, p, p.top, lists)
        inner, _, scales = self.of.process(second.layer.humming_config, inputs=product, **SILU)
        self._multiply(second, inner, parts, ids, p, 1, lists, **({} if scales is None else {"input_scale": scales}))
        self.of.sum(parts.view(p.tokens, p.top, p.hidden), x.weights, x.out)

    def _multiply(
        self,
        of: Product,
        a: Tensor,
        out: Tensor,
        ids: Tensor,
        p: Workload,
        top: int,
        lists: dict[int, dict[str, Tensor]],
        **more: Any,
    ) -> None:
        """By the tile that it takes for so many rows; products of one tile share their lists of rows."""
        rows = ids.numel()
        tiles = self.of.tiles(of.layer.humming_config, gemm_type=COMPUTE["gemm_type"], device=a.device)
        tile = next(tile for least, most, tile in tiles if least < rows <= most)
        block = tile["block_shape"][0]
        if block not in lists:
            room = min(rows + p.experts * (block - 1), rows * block)
            order, whose, end = (ids.new_empty(n, dtype=torch.int32) for n in (room, -(-room // block), 1))
            self.of.align(ids, p.experts, block, order, whose, end, None)
            lists[block] = {"sorted_ids": order, "expert_ids": whose, "num_tokens_padded": end}
        told = {"top_k": top, "valid_shape_m": rows, "compute_config": COMPUTE, "tuning_config": tile}
        of.layer(inputs=a, outputs=out, **lists[block], **told, **more)


def _values(p: Workload, of: Product, expert: int) -> Tensor:
    return BlockScaled(format=p.of.format, codes=of.codes[expert], scales=of.scales[expert]).values()
