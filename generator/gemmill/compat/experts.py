"""Engines' grouped GEMMs with scales in blocks, and which of their calls come to gemmill."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from gemmill.compat.linear import Linear, called

Scaled = tuple[Tensor, Tensor]
"""Codes and their scales."""
Result = TypeVar("Result")


def experts_called(
    a: Scaled, b: Scaled, out: Tensor, by: str, ours: Callable[[], Result], theirs: Callable[[], Result]
) -> Result:
    """The result of a call as DeepGEMM takes it: gemmill's where the build has variants and calls of the layer pass, else the engine's.

    a is [..., K] with scales [..., K/128], b [E, N, K] with scales [E, N/128, K/128], all scales float32, and out [..., N].
    """
    (codes, a_scales), (weights, b_scales) = a, b
    if not a_scales.dtype == b_scales.dtype == torch.float32:
        return theirs()
    experts, n, k = weights.shape
    layer = Linear(n=n, k=k, codes=codes.dtype, out_dtype=out.dtype, blocks=True, experts=experts)
    return called(layer, by, ours, theirs)
