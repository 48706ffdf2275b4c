"""Layers of FP8 experts that engines give `fused_experts` whole: which calls come to gemmill, and how they are made."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

import gemmill
from gemmill.compat.linear import BLOCK, FINE_BLOCK
from gemmill.runtime import ops
from gemmill.runtime.holding import holds_here

MOST_TOKENS: Mapping[int, int] = {BLOCK: 256, FINE_BLOCK: 256, 0: 1}
"""The most tokens of a call that gemmill's kernels take, by the blocks of scales.

vLLM's Triton kernels take 1.08 to 1.46 times gemmill's time up to 256 tokens of Qwen3-30B-A3B with blocks of 128 (H200, 2026-11-23),
and 1.65 to 2.80 times up to 4,096 of DeepSeek V4.1 with blocks of 32 (2026-11-27).
Scales of rows have kernels by warps. Such kernels for blocks were slower than Triton's from two tokens on.
"""
MANY_TOKENS: Mapping[int, int] = {BLOCK: 257, FINE_BLOCK: 257, 0: 512}
"""From so many tokens on calls are gemmill's again, where its build computes them by grouped GEMMs. Without an entry none are."""
AT_ONCE = 4096
"""Tokens of one call: more come in pieces, so that their workspace is that of so many."""
ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
_CODES = torch.float8_e4m3fn


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A layer of experts, as far as a variant for it depends on it."""

    experts: int
    """The number of experts whose weights are here."""
    hidden: int
    inner: int
    topk: int
    dtype: torch.dtype
    """The dtype of x and of the result."""
    blocks: int
    """Rows and columns of the blocks that share a scale; 0 where they are of rows."""

    @property
    def rows(self) -> tuple[int, ...]:
        """The tokens for which the log names variants when gemmill takes the layer."""
        return tuple(sorted({1, MOST_TOKENS[self.blocks], *([AT_ONCE] if holds_here() else [])}))

    def __str__(self) -> str:
        scales = f"blocks of {self.blocks}" if self.blocks else "rows"
        return f"layer of {self.experts} experts of {self.hidden} x {self.inner}, e4m3 weights with scales of {scales}, all in one call"

    def call(self, m: int) -> tuple[Any, ...]:
        """The op's name and its arguments for m tokens, on torch's meta device."""

        def empty(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=kind, device="meta")

        e, k, inner = self.experts, self.hidden, self.inner
        scales = empty(e, 2 * inner), empty(e, k)
        if self.blocks:
            across, down, back = (-(-extent // self.blocks) for extent in (2 * inner, k, inner))
            scales = empty(e, across, down), empty(e, down, back)
        weights = empty(e, 2 * inner, k, kind=_CODES), empty(e, k, inner, kind=_CODES)
        ids, by = empty(m, self.topk, kind=torch.int32), empty(m, self.topk)
        x, out = (empty(m, k, kind=self.dtype) for _ in range(2))
        plain = ACTIVATIONS[0], 1.0, math.inf, 0.0, 0, False, False
        return "fused_experts", out, x, *weights, *scales, ids, by, *plain, None, None, None, None

    def takes(self, m: int) -> bool:
        """Whether calls of m tokens are gemmill's: all that hold one order. Raises nothing."""
        if holds_here():
            return True
        many = MANY_TOKENS.get(self.blocks)
        return m <= MOST_TOKENS[self.blocks] or (many is not None and m >= many and goes_apart(self, _build_id()))

    def most_at_once(self, m: int) -> int:
        """The most tokens that gemmill computes at once of calls of up to m tokens."""
        return min(m, AT_ONCE if self.takes(m) else MOST_TOKENS[self.blocks])


def _build_id() -> str:
    try:
        return ops.active().build_id
    except Exception:  # whatever is wrong with gemmill, the engine has kernels of its own
        return ""


@cache
def goes_apart(experts: Experts, build_id: str) -> bool:
    """Whether a build computes many tokens by grouped GEMMs."""
    try:
        entry = ops.explain(*experts.call(AT_ONCE)).entry if build_id else None
    except RuntimeError:
        return False
    return entry is not None and entry.config.apart


@cache
def experts_of(shape: torch.Size, topk: int, dtype: torch.dtype, blocks: int) -> Experts:
    """The layer of w13 [E, 2 I, K], the same object for the same arguments."""
    experts, rows, hidden = shape
    return Experts(experts=experts, hidden=hidden, inner=rows // 2, topk=topk, dtype=dtype, blocks=blocks)


def in_pieces(
    out: Tensor,
    x: Tensor,
    layer: tuple[Tensor, Tensor, Tensor, Tensor],
    topk_ids: Tensor,
    weights: Tensor,
    activation: str,
    expert_map: Tensor | None = None,
    workspace: Tensor | None = None,
) -> None:
    """Write into out [M, K] the experts' results of x [M, K], of AT_ONCE tokens in a call; a layer is w13, w2 and their scales."""
    weights = weights if weights.dtype == torch.float32 else weights.float()
    for first in range(0, len(x), AT_ONCE):
        piece = slice(first, first + AT_ONCE)
        gemmill.fused_experts(
            x[piece],
            *layer,
            topk_ids[piece],
            weights[piece],
            activation,
            expert_map=expert_map,
            out=out[piece],
            workspace=None if workspace is None else workspace.view(-1).view(torch.uint8),
        )
