"""The timed calls of a gated GEMM: its kind in words, and the ops that do the same."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gemmill.families.gated_mm.config import FINE_GROUP, GROUP, Result

KINDS = {"bf16": Result.BF16, "static": Result.STATIC, "groups": Result.GROUP}
ENDS = ("", "_swiglu")
SCALES = ("", "_of_blocks")
"""Behind a kind: of rows and columns, or of A in 1 x 128 and of the weights in 128 x 128."""
FINE = "_of_blocks_32"
"""Behind a kind of a dense layer: of A in 1 x 32 and of the weights in 32 x 32."""
INTEGERS = "_int8"
"""Behind a kind, for operands of int8 with scales of rows and columns; others are of e4m3."""
SILU = ("silu", 1.0, math.inf, 0.0)
SWIGLU = ("swiglu", 1.702, 7.0, 1.0)
CHECKED_ROWS, CHECKED_COLUMNS = 8, 256
"""At the end of each: whole layers take float64 too long."""


@dataclass(frozen=True, kw_only=True)
class GatedWorkload:
    """One layer's first product, with its end."""

    kind: str
    m: int
    hidden: int
    k: int

    @property
    def word(self) -> str:
        """The stored result and its scales."""
        return self.kind

    @property
    def result(self) -> Result:
        """The stored result."""
        found = KINDS[self.word.partition("_")[0]]
        return Result.FINE_GROUP if found is Result.GROUP and self.group == FINE_GROUP else found

    @property
    def activation(self) -> tuple[str, float, float, float]:
        """As the op takes it, with its numbers."""
        return SWIGLU if "_swiglu" in self.word else SILU

    @property
    def in_groups(self) -> bool:
        """Whether scales of the operands are in groups along K."""
        return self.word.endswith((SCALES[1], FINE))

    @property
    def group(self) -> int:
        """Elements along K that share a scale, where any do, and results that do."""
        return FINE_GROUP if self.word.endswith(FINE) else GROUP

    @property
    def is_of_integers(self) -> bool:
        """Whether operands are int8."""
        return self.word.endswith(INTEGERS)

    @property
    def dtype(self) -> torch.dtype:
        """Of the operands."""
        return torch.int8 if self.is_of_integers else torch.float8_e4m3fn

    @property
    def sizes(self) -> dict[str, int]:
        """By name."""
        return {"m": self.m, "n": 2 * self.hidden, "k": self.k}

    @property
    def flops(self) -> float:
        """Multiplications and additions of the product."""
        return 4.0 * self.m * self.hidden * self.k

    @property
    def bytes(self) -> int:
        """Weights, activations, results."""
        return 2 * self.hidden * self.k + self.m * (self.k + self.hidden * self.result.dtype.bits // 8)

    def __str__(self) -> str:
        return f"{self.kind} {self.m} x (2 x {self.hidden}) x {self.k}"


def after(
    ops: Any, out: Tensor, product: Tensor, out_scales: Tensor | None, static_scale: Tensor | None
) -> Callable[[], object]:
    """The op after a product, with its arguments bound: SiLU's, whose time is that of others."""
    if out_scales is not None:
        group = out.shape[1] // out_scales.shape[1]
        return partial(ops.silu_and_mul_per_block_quant.default, out, product, out_scales, group)
    return partial(ops.silu_and_mul_quant.default, out, product, static_scale)
