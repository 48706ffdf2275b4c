"""Experts of nvfp4 weights, with activations of bf16: what stands in the place of engines' Marlin experts.

Weights are packed where an engine would pack them for Marlin, and are known by their dtype afterwards: uint8, where Marlin's are int32.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.compat.linear import Linear, packed_fp4, refusal
from gemmill.formats.fp4_blocks import CODE_BYTES
from gemmill.formats.layout import SIDE

_BLOCK_BYTES = CODE_BYTES + SIDE * SIDE // 16


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Of one GEMM of all experts."""

    blocks: Tensor
    """uint8 [E, N / 64, bytes of a row of blocks]."""
    base: Tensor
    """f32 [E, N]."""
    alpha: Tensor
    """f32 [E]: what each expert's product is multiplied by."""
    bias: Tensor | None = None
    """bf16 [E, N]."""


def is_packed(weight: Tensor) -> bool:
    """Whether an engine's parameter holds blocks."""
    return weight.dtype == torch.uint8


def packed(parts: tuple[tuple[Tensor, Tensor, Tensor], ...], dtype: torch.dtype) -> tuple[Weights, ...] | None:
    """Pack codes [E, N, K / 2], scales [E, N, K / 16] and multipliers [E] of each GEMM for gemmill's kernels. None where a
    variant or an expert's weights do not fit."""
    made = []
    for codes, scales, multipliers in parts:
        experts, n, half = codes.shape
        linear = Linear(n=n, k=2 * half, codes=dtype, out_dtype=dtype, format="nvfp4", experts=experts)
        if multipliers.numel() != experts or refusal(linear) is not None:
            return None
        each = [packed_fp4("nvfp4", *of_one) for of_one in zip(codes, scales, strict=True)]
        if (whole := [one for one in each if one is not None]) != each:
            return None
        blocks, bases = (torch.stack(tensors) for tensors in zip(*whole, strict=True))
        made.append(Weights(blocks=blocks.flatten(2), base=bases, alpha=multipliers.float().reshape(-1)))
    return tuple(made)


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
    from gemmill import grouped_mm

    top, experts = topk_ids.shape[1], first.blocks.shape[0]
    order, offsets = _sorted(topk_ids, experts, expert_map)

    def product(rows: Tensor, weights: Weights, token_ids: Tensor | None) -> Tensor:
        blocks, more = weights.blocks.unflatten(2, (-1, _BLOCK_BYTES)), {"alpha": weights.alpha, "bias": weights.bias}
        return grouped_mm(rows, blocks, None, weights.base, offsets, token_ids=token_ids, format="nvfp4", **more)

    out = product(activation(product(x, first, order // top)), second, None)
    lives = torch.arange(order.numel(), device=order.device) < offsets[-1]
    rows = torch.empty_like(out).index_copy_(0, order, torch.where(lives[:, None], out, 0))
    rows = rows.view(*topk_ids.shape, -1)
    return rows if topk_weights is None else (rows * topk_weights[..., None]).to(out.dtype)


def _sorted(topk_ids: Tensor, experts: int, expert_map: Tensor | None) -> tuple[Tensor, Tensor]:
    """Numbers of (token, expert) in the order of experts, those of none last, and where the rows of each begin and end."""
    ids = topk_ids.flatten().long()
    if expert_map is not None:
        ids = torch.where(ids < 0, ids, expert_map[ids.clamp(min=0)].long())
    known = torch.where((ids >= 0) & (ids < experts), ids, experts)
    ordered, order = torch.sort(known, stable=True)
    bounds = torch.arange(experts + 1, device=ids.device)
    return order, torch.searchsorted(ordered, bounds, out_int32=True)
