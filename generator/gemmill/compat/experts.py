"""Engines' grouped GEMMs with scales in blocks, and which of their calls come to gemmill."""

import torch
from torch import Tensor

from gemmill.compat.linear import Linear, refusal

Scaled = tuple[Tensor, Tensor]
"""Codes and their scales."""


def takes_experts(a: Scaled, b: Scaled, out: Tensor) -> bool:
    """Whether the build has variants for a call as DeepGEMM takes it. Raises nothing.

    a is [..., K] with scales [..., K/128], b [E, N, K] with scales [E, N/128, K/128], all scales float32, and out [..., N].
    """
    (codes, a_scales), (weights, b_scales) = a, b
    if not a_scales.dtype == b_scales.dtype == torch.float32:
        return False
    experts, n, k = weights.shape
    layer = Linear(n=n, k=k, codes=codes.dtype, out_dtype=out.dtype, blocks=True, experts=experts)
    return refusal(layer) is None
