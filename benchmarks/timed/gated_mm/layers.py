"""The timed calls of a gated GEMM: its kind in words, and the ops that do the same."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from gemmill.families.gated_mm.config import FINE_GROUP, GROUP, Result
from timed.workload import Kind, Workload

RESULTS = {"bf16": Result.BF16, "static": Result.STATIC, "groups": Result.GROUP}
ENDS = ("", "_swiglu")
SCALES = ("", "_of_blocks")
"""Behind a kind: of rows and columns, or of A in 1 x 128 and of the weights in 128 x 128."""
FINE = "_of_blocks_32"
"""Behind a kind of a dense layer: of A in 1 x 32 and of the weights in 32 x 32."""
INTEGERS = "_int8"
"""Behind a kind, for operands of int8 with scales of rows and columns; others are of e4m3."""
PREFIX, GATHERED = "experts_", "_gathered"
"""Before a kind, and behind it where rows are gathered by their numbers."""
SILU = ("silu", 1.0, math.inf, 0.0)
SWIGLU = ("swiglu", 1.702, 7.0, 1.0)
CHECKED_ROWS, CHECKED_COLUMNS = 8, 256
"""At the end of each: whole layers take float64 too long."""


@dataclass(frozen=True, kw_only=True)
class GatedKind(Kind):
    """A first product with its end: of m rows, `hidden` results and k; of experts' rows with `experts` and `top` too."""

    result: Result
    """The stored result."""
    activation: tuple[str, float, float, float]
    """As the op takes it, with its numbers."""
    in_groups: bool
    """Whether scales of the operands are in groups along K."""
    group: int = GROUP
    """Elements along K that share a scale, where any do, and results that do."""
    dtype: torch.dtype = torch.float8_e4m3fn
    """Of the operands."""
    of_experts: bool = False
    """Whether rows belong to experts, `top` to each token."""
    gathered: bool = False
    """Whether rows of A are named by numbers."""

    @property
    def is_of_integers(self) -> bool:
        """Whether operands are int8."""
        return self.dtype is torch.int8

    def sizes(self, p: Workload) -> dict[str, int]:
        """By name."""
        return {"m": p.m, "n": 2 * p.hidden, "k": p.k} | ({"experts": p.experts} if self.of_experts else {})

    def flops(self, p: Workload) -> float:
        """Multiplications and additions of the product."""
        return 4.0 * p.m * p.hidden * p.k

    def bytes(self, p: Workload) -> int:
        """Weights, of experts those that can have rows, activations, results."""
        weights = 2 * p.hidden * p.k * (min(p.m, p.experts) if self.of_experts else 1)
        rows = p.m // p.top if self.gathered else p.m
        return weights + rows * p.k + p.m * p.hidden * self.result.dtype.bits // 8

    def text(self, p: Workload) -> str:
        """The sizes in words."""
        layer = f"(2 x {p.hidden}) x {p.k}"
        return f"{p.m // p.top} tokens, top {p.top} of {p.experts} x {layer}" if self.of_experts else f"{p.m} x {layer}"


def _kinds() -> Iterator[GatedKind]:
    """Of dense layers, then in groups of 32, of int8, of experts, and of experts with gathered rows."""
    dense = [
        GatedKind(
            name=f"{word}{end}{scales}",
            result=result,
            activation=SWIGLU if end else SILU,
            in_groups=bool(scales),
        )
        for (word, result), end, scales in product(RESULTS.items(), ENDS, SCALES)
    ]
    experts = [replace(kind, name=f"{PREFIX}{kind.name}", of_experts=True) for kind in dense]
    yield from dense
    yield from (_fine(kind) for kind in dense if not kind.in_groups)
    yield from (replace(kind, name=kind.name + INTEGERS, dtype=torch.int8) for kind in dense if not kind.in_groups)
    yield from experts
    yield from (replace(kind, name=kind.name + GATHERED, gathered=True) for kind in experts)


def _fine(kind: GatedKind) -> GatedKind:
    result = Result.FINE_GROUP if kind.result is Result.GROUP else kind.result
    return replace(kind, name=kind.name + FINE, in_groups=True, group=FINE_GROUP, result=result)


KINDS = {kind.name: kind for kind in _kinds()}


def after(
    ops: Any, out: Tensor, product: Tensor, out_scales: Tensor | None, static_scale: Tensor | None
) -> Callable[[], object]:
    """The op after a product, with its arguments bound: SiLU's, whose time is that of others."""
    if out_scales is not None:
        return partial(
            ops.silu_and_mul_per_block_quant.default, out, product, out_scales, out.shape[1] // out_scales.shape[1]
        )
    return partial(ops.silu_and_mul_quant.default, out, product, static_scale)
