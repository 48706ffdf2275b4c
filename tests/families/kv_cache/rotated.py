"""Vectors whose rotation is exact in every 16-bit type."""

import torch
from torch import Tensor

from gemmill.families.kv_cache.cases.made import SEED
from gemmill.families.kv_cache.formats import RotationKind
from gemmill.families.kv_cache.reference.rotations import rotate

HEAD_DIM = 64
"""Of which the root is a power of two."""


def exact(tokens: int, heads: int, dtype: torch.dtype, kind: RotationKind, seed: int = SEED) -> tuple[Tensor, Tensor]:
    """Vectors [tokens, heads, 64] of a few powers of two, and the same rotated: whole numbers."""
    random = torch.Generator().manual_seed(tokens)
    x = torch.zeros(tokens, heads, HEAD_DIM)
    places = torch.rand(x.shape, generator=random).argsort(-1)[..., :5]
    x.scatter_(-1, places, torch.tensor([-32.0, -16, -8, 8, 16, 32])[torch.randint(6, places.shape, generator=random)])
    rotated = rotate(x.double(), kind, seed)
    assert torch.equal(rotated, rotated.to(dtype).double()) and torch.equal(x, x.to(dtype).float())
    return x.to(dtype), rotated.to(dtype)
