"""The op as a function that allocates its results."""

import torch

from gemmill.families.routing.config import MOST_TOPK
from gemmill.runtime.ops import overload
from gemmill.runtime.sizes import size

__all__ = ["router_topk"]

_ROUTER_TOPK = overload("router_topk")


def router_topk(
    x: torch.Tensor,
    weight: torch.Tensor,
    topk: int,
    *,
    renormalize: bool = True,
    is_padding: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return logits [M, E], weights f32 [M, topk] and experts s32 [M, topk] of tokens x [M, K], in one launch.

    `weight` is [E, K]; both operands are bfloat16 or float16, row-major, K a multiple of 8, E at most 512. Logits are x weight^T,
    summed in float32 and rounded to x's dtype. A token's experts are those of its `topk` largest logits, 32 at most, in
    falling order, of equal ones the lower expert first; NaN is larger than any number. Their weights are the softmax of all its
    logits, with `renormalize` divided by their sum, as vLLM's topk_softmax. Rows where `is_padding`, bool or uint8 [M], is true get
    expert -1, which fused_experts skips.

    A token's results have the same bits whatever the other tokens are. Raises RuntimeError with one sentence where the arguments
    do not fit.
    """
    tokens = size(x, 0)
    logits = x.new_empty((tokens, size(weight, 0)))
    if not 1 <= topk <= MOST_TOPK:
        raise RuntimeError(f"router_topk: topk is {topk}: kernels take the largest 1 to {MOST_TOPK} logits of a token")
    kept = tokens, topk
    weights, ids = x.new_empty(kept, dtype=torch.float32), x.new_empty(kept, dtype=torch.int32)
    if is_padding is not None and is_padding.dtype is torch.bool:
        is_padding = is_padding.view(torch.uint8)
    _ROUTER_TOPK(logits, weights, ids, x, weight, renormalize, is_padding)
    return logits, weights, ids
