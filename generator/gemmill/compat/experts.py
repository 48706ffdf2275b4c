"""Engines' grouped GEMMs with scales in blocks, and which of their calls come to gemmill."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from gemmill.compat.linear import Linear, block_of, called

Scaled = tuple[Tensor, Tensor]
"""Codes and their scales."""
Result = TypeVar("Result")


def experts_called(
    a: Scaled,
    b: Scaled,
    out: Tensor,
    by: str,
    ours: Callable[[], Result],
    theirs: Callable[[], Result],
    is_engines: Callable[[], bool] = bool,
) -> Result:
    """The result of a call as DeepGEMM takes it: gemmill's where the build has variants and calls of the layer pass, else the engine's.

    a is [..., K] with scales [..., K/128], b [E, N, K] with scales [E, N/128, K/128], all scales float32, and out [...,
    N]. A layer's first call evaluates `is_engines`: whether the engine keeps it.
    """
    (codes, a_scales), (weights, b_scales) = a, b
    dtypes = codes.dtype, out.dtype, a_scales.dtype, b_scales.dtype

    def layer() -> Linear | None:
        blocks = block_of(weights.shape, b_scales.shape)
        if is_engines() or not blocks or dtypes[2:] != (torch.float32, torch.float32):
            return None
        experts, n, k = weights.shape
        return Linear(n=n, k=k, codes=dtypes[0], out_dtype=dtypes[1], blocks=blocks, experts=experts)

    return called((weights.shape, b_scales.shape, dtypes), layer, by, ours, theirs)
