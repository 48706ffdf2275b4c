"""Which routers are timed, and their arguments."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from timed.workload import Kind, Workload, any_size

LAYERS = ((8, 4096, 2), (64, 2048, 6), (128, 2048, 8), (128, 4096, 8), (256, 2048, 8), (512, 2048, 10), (256, 7168, 8))
"""Experts, K and topk, as of Mixtral-8x7B, DeepSeek-V2-Lite, Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Next and DeepSeek-V3."""
ROWS = (1, 16, 64, 128, 192, 256, 512)
DRAWN_ROWS, DRAWN_EXPERTS, DRAWN_K = (1, 512), (8, 512), (512, 8192)
"""The least and most of tokens, experts and K."""
FEWEST_COPIES, MOST_COPIES = 2, 512
TINY = (5, 16, 64, 2)


@dataclass(frozen=True, kw_only=True)
class RouterKind(Kind):
    """Routers of one type, at m, experts, k and topk; weights of a token's experts add up to one."""

    dtype: torch.dtype

    def flops(self, p: Workload) -> float:
        """Multiplications and additions of the product."""
        return 2.0 * p.m * p.experts * p.k

    def bytes(self, p: Workload) -> int:
        """Weights, tokens, logits, and the largest of them."""
        return self.dtype.itemsize * (p.experts * p.k + p.m * p.k + p.m * p.experts) + 8 * p.m * p.topk


KINDS = {"bf16": RouterKind(name="bf16", dtype=torch.bfloat16)}


@dataclass(frozen=True, kw_only=True)
class RouterOperands:
    """The operands of one router; copies have weights of their own."""

    workload: Workload
    x: Tensor
    weights: tuple[Tensor, ...]
    results: tuple[Tensor, Tensor, Tensor]
    """Logits, weights and experts."""

    @property
    def copies(self) -> int:
        """How many there are."""
        return len(self.weights)


class RouterMaker:
    """Makes operands of normal random numbers."""

    def __init__(self, device: torch.device, rotated_bytes: int) -> None:
        self._device, self._rotated = device, rotated_bytes
        self._generator = torch.Generator(device=device).manual_seed(0)

    def make(self, workload: Workload) -> RouterOperands:
        """Of a workload."""
        p = workload
        count = min(MOST_COPIES, max(FEWEST_COPIES, -(-self._rotated // (2 * p.experts * p.k))))
        empty = {"device": self._device}
        return RouterOperands(
            workload=p,
            x=self._numbers(p, p.m),
            weights=tuple(self._numbers(p, p.experts) for _ in range(count)),
            results=(
                torch.empty((p.m, p.experts), dtype=p.of.dtype, **empty),
                torch.empty((p.m, p.topk), dtype=torch.float32, **empty),
                torch.empty((p.m, p.topk), dtype=torch.int32, **empty),
            ),
        )

    def _numbers(self, p: Workload, rows: int) -> Tensor:
        drawn = torch.randn((rows, p.k), dtype=torch.float32, device=self._device, generator=self._generator)
        return drawn.to(p.of.dtype)


def workloads_of(options: Namespace) -> list[Workload]:
    """Every layer at every number of tokens, or drawn ones. Raises ValueError."""
    if options.draw is not None:
        return [KINDS["bf16"].at(**sizes) for sizes in _drawn(Random(options.draw), options.draws)]
    if unknown := [row for row in options.rows.split(",") if not row.strip().isdigit()]:
        raise ValueError(f"--rows {unknown[0]!r} is not a number of tokens")
    return [
        KINDS["bf16"].at(m=int(m), experts=experts, k=k, topk=topk)
        for experts, k, topk in LAYERS
        for m in options.rows.split(",")
    ]


def _drawn(random: Random, count: int) -> Iterator[dict[str, int]]:
    """So many sizes, log-uniform, of layers that vLLM's plugin takes and of larger ones."""
    for _ in range(count):
        experts, k = (
            step * round(any_size(random, *ends) / step) for ends, step in ((DRAWN_EXPERTS, 8), (DRAWN_K, 64))
        )
        yield {"m": round(any_size(random, *DRAWN_ROWS)), "experts": experts, "k": k, "topk": random.randint(1, 8)}


def add_options(parser: ArgumentParser) -> None:
    """Of the routers alone."""
    known = ",".join(KINDS)
    parser.add_argument("--op", "--ops", default=known, choices=[known], help=f"kinds, {known}")
    parser.add_argument("--draw", type=int, metavar="SEED", help="draw sizes in place of the layers")
    parser.add_argument("--draws", type=int, default=12, help="how many are drawn")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="tokens, with commas")


def tiny(workload: Workload) -> Workload:
    m, experts, k, topk = TINY
    return workload.resized(m=min(workload.m, m), experts=experts, k=k, topk=topk)
