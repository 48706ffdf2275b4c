"""The arithmetic of routers, on the CPU."""

import torch
from torch import Tensor


def logits_of(x: Tensor, weight: Tensor) -> Tensor:
    """x [M, K] times weight [E, K] transposed, in float64: a kernel's sums are float32, and round to x's dtype once."""
    return x.double() @ weight.double().t()


def largest(logits: Tensor, topk: int, *, renormalize: bool, is_padding: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weights f32 and ids s32 [M, topk] of the largest of each row's softmax, of equal logits the lower expert first.

    NaN counts as larger than any number. With `renormalize` a row's weights add up to one. Ids are -1 in rows where `is_padding`
    [M] is not zero.
    """
    values = logits.double()
    _, ids = torch.sort(values, dim=1, descending=True, stable=True)  # NaN first
    ids = ids[:, :topk]
    weights = torch.exp(values - values.gather(1, ids[:, :1]))
    chosen = weights.gather(1, ids)
    total = (chosen if renormalize else weights).sum(dim=1, keepdim=True)
    ids = ids.int() if is_padding is None else ids.int().masked_fill(is_padding.bool().reshape(-1, 1), -1)
    return (chosen / total).float(), ids
