"""Experts of nvfp4 and mxfp4 weights, with activations of bf16, in place of engines' Marlin experts.

They pack weights where an engine would pack them for Marlin, and know them by their dtype afterwards: uint8, where
Marlin's are int32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

import gemmill
from gemmill import settings
from gemmill.compat.linear import Linear, packed_fp4, refusal, serves
from gemmill.formats.fp4_blocks import CODE_BYTES
from gemmill.formats.layout import SIDE
from gemmill.runtime.notices import LOG
from gemmill.runtime.ops import overload

_FP4_MM = overload("grouped_fp4_mm")
_GROUPS = {"nvfp4": 16, "mxfp4": 32}
"""Values that share a scale."""
Part = tuple[Tensor, Tensor, Tensor | None]
"""Codes [E, N, K / 2], scales [E, N, K / group] and, with nvfp4, multipliers [E] of one GEMM."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Of one GEMM of all experts."""

    blocks: Tensor
    """uint8 [E, N / 64, bytes of a row of blocks]."""
    base: Tensor
    """f32 [E, N]."""
    alpha: Tensor | None
    """f32 [E]: the factor of each expert's product; None with mxfp4."""
    bias: Tensor | None = None
    """bf16 [E, N]."""

    @property
    def format(self) -> str:
        """nvfp4 if there is an alpha, else mxfp4."""
        return "mxfp4" if self.alpha is None else "nvfp4"

    @property
    def of_op(self) -> tuple[Tensor, dict[str, Any]]:
        """Blocks as the op takes them, [E, N / 64, K / 64, bytes], and the op's further arguments on them."""
        blocks = self.blocks.unflatten(2, (-1, CODE_BYTES + SIDE * SIDE // _GROUPS[self.format]))
        return blocks, {"format": self.format, "alpha": self.alpha, "bias": self.bias}


def are_asked_for() -> bool:
    """Whether gemmill is to have experts whose kernels were not measured to be faster than Marlin's; logs once that it
    is not.
    """
    if not (asked := settings.takes_fp4_experts()):
        _tell()
    return asked


@cache
def _tell() -> None:
    LOG.info(
        "experts of 4-bit weights stay with the engine's Marlin kernels: GEMMILL_FP4_EXPERTS=1 gives them to gemmill"
    )


def is_packed(weight: Tensor) -> bool:
    """Whether an engine's parameter holds blocks."""
    return weight.dtype == torch.uint8


def packed(parts: tuple[Part, Part], dtype: torch.dtype, of: object) -> tuple[Weights, Weights] | None:
    """Each GEMM's weights for gemmill's kernels; None where a variant or an expert's weights do not fit, or the first call fails.

    `of` is the engine's layer.
    """
    layers, made = [], []
    for codes, scales, multipliers in parts:
        experts, n, half = codes.shape
        format = "mxfp4" if multipliers is None else "nvfp4"
        layers.append(Linear(n=n, k=2 * half, codes=dtype, out_dtype=dtype, format=format, experts=experts))
        if scales.shape != (experts, n, 2 * half // _GROUPS[format]) or refusal(layers[-1]) is not None:
            return None
        if multipliers is not None and multipliers.numel() != experts:
            return None
        if (blocks_and_bases := packed_fp4(format, codes, scales)) is None:
            return None
        blocks, bases = blocks_and_bases
        alpha = None if multipliers is None else multipliers.float().reshape(-1)
        made.append(Weights(blocks=blocks.flatten(2), base=bases, alpha=alpha))
    first, second = made
    return (first, second) if _passes(layers, first, second, of) else None


def _passes(layers: list[Linear], first: Weights, second: Weights, of: object) -> bool:
    """Whether the call of a token passes, whose activation is that of nothing."""
    inner, device = layers[1].k, first.blocks.device

    def call(x: Tensor, by: Tensor, ids: Tensor, *both: Tensor) -> Tensor:
        names = ("blocks", "base", "alpha")
        weights = [Weights(**dict(zip(names, of_one, strict=True))) for of_one in (both[:3], both[3:])]
        return multiplied(x, *weights, lambda rows: rows[:, :inner].contiguous(), by, ids)

    x = torch.zeros((1, layers[0].k), dtype=layers[0].codes, device=device)
    by = torch.ones((1, 1), dtype=torch.float32, device=device)
    ids = torch.zeros((1, 1), dtype=torch.int32, device=device)
    tensors = (tensor for weights in (first, second) for tensor in (weights.blocks, weights.base, weights.alpha))
    return serves(layers[0], "grouped_fp4_mm", of, call, x, by, ids, *tensors)


def multiplied(
    x: Tensor,
    first: Weights,
    second: Weights,
    activation: Callable[[Tensor], Tensor],
    topk_weights: Tensor | None,
    topk_ids: Tensor,
    expert_map: Tensor | None = None,
) -> Tensor:
    """Multiply x [M, K] by the experts topk_ids [M, top], each row by its weight unless that is None; [M, top, K].

    expert_map says which of the weights an expert's are, -1 for none: its rows are 0. `activation` makes [rows, N] of the first
    GEMM's rows.
    """
    top, experts = topk_ids.shape[1], first.blocks.shape[0]
    order, offsets = _sorted(topk_ids, experts, expert_map)
    blocks, more = first.of_op
    rows = gemmill.grouped_mm(x, blocks, None, first.base, offsets, token_ids=order // top, **more)
    out = x.new_zeros(len(rows), second.base.shape[1])  # rows of no expert are not written
    blocks, more = second.of_op
    alpha, bias, format = more["alpha"], more["bias"], more["format"]
    _FP4_MM(out, activation(rows), blocks, None, second.base, alpha, bias, offsets, None, None, format)
    rows = torch.empty_like(out).index_copy_(0, order, out).view(*topk_ids.shape, -1)
    return rows if topk_weights is None else rows.mul_(topk_weights[..., None])


def _sorted(topk_ids: Tensor, experts: int, expert_map: Tensor | None) -> tuple[Tensor, Tensor]:
    """Numbers of (token, expert) in the order of experts, those of none first or last, and where the rows of each begin and end."""
    ids = topk_ids.flatten()
    if expert_map is not None:
        ids = torch.where(ids < 0, ids, expert_map[ids.clamp(min=0).long()].to(ids.dtype))
    ordered, order = torch.sort(ids, stable=True)
    bounds = torch.arange(experts + 1, device=ids.device, dtype=ids.dtype)
    return order, torch.searchsorted(ordered, bounds, out_int32=True)
