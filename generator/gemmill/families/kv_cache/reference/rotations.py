"""The Hadamard transform, rotations of a cache, and the projection of turboquant_prod.

A rotation R is orthogonal, so an inner product is the same on both sides of it. The reference rotates queries instead
of keys, and rotates the output of attention back once instead of every value.

Signs and Gaussian entries come from `seeds.py` (SplitMix64 with one stream a purpose), so a seed means the same numbers on
every machine. The randomised Hadamard rotation is then the same but for the rounding of its sums. The dense one depends on
the QR factorisation of torch's LAPACK too, and two machines differ by about 1e-14.
"""

import functools

import torch
from torch import Tensor

from gemmill.families.kv_cache import hadamard, seeds
from gemmill.families.kv_cache.formats import RotationKind
from gemmill.families.kv_cache.seeds import Purpose


def hadamard_transform(x: Tensor, scale: float | None = None, *, transpose: bool = False) -> Tensor:
    """H x for each row of x [..., d], times `scale` (d^-1/2 if None, which makes it orthonormal), in x's dtype.

    d is 2^n, or 12, 20 or 28 times 2^n. H is the base matrix times Sylvester's, as in Dao's fast-hadamard-transform;
    `transpose` gives H^T x, which differs for 20 and 28 times 2^n. Raises ValueError for other sizes.
    """
    size = x.shape[-1]
    base, power = hadamard.split(size)
    rows = x.shape[:-1]
    y = x.reshape(*rows, base, 1 << power)
    for stage in range(power):
        pairs = y.reshape(*rows, base, 1 << (power - stage - 1), 2, 1 << stage)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        y = torch.stack((low + high, low - high), dim=-2).flatten(-3)
    if base > 1:
        matrix = torch.tensor(hadamard.base_matrix(base), dtype=x.dtype, device=x.device)
        y = torch.einsum("ji,...ik->...jk" if not transpose else "ij,...ik->...jk", matrix, y)
    factor = size**-0.5 if scale is None else scale
    return y.reshape(x.shape) * factor


def rotate(x: Tensor, kind: RotationKind, seed: int) -> Tensor:
    """R x for each row of x [..., d], in x's dtype."""
    size = x.shape[-1]
    if kind is RotationKind.NONE:
        return x
    if kind is RotationKind.HADAMARD:
        return hadamard_transform(x)
    if kind is RotationKind.RANDOM_HADAMARD:
        return hadamard_transform(x * _signs(size, seed).to(x))
    return x @ _dense(size, seed).to(x).T


def rotate_back(y: Tensor, kind: RotationKind, seed: int) -> Tensor:
    """R^T y for each row of y [..., d], in y's dtype."""
    size = y.shape[-1]
    if kind is RotationKind.NONE:
        return y
    if kind is RotationKind.HADAMARD:
        return hadamard_transform(y, transpose=True)
    if kind is RotationKind.RANDOM_HADAMARD:
        return hadamard_transform(y, transpose=True) * _signs(size, seed).to(y)
    return y @ _dense(size, seed).to(y)


@functools.cache
def projection(size: int, seed: int) -> Tensor:
    """S of turboquant_prod: independent standard normal entries, float64 [size, size]."""
    return _gaussian(size, seed, Purpose.PROJECTION)


@functools.cache
def _signs(size: int, seed: int) -> Tensor:
    return torch.tensor(seeds.signs(seed, size), dtype=torch.float64, device="cpu")


@functools.cache
def _dense(size: int, seed: int) -> Tensor:
    """Q of the QR factorisation with a positive diagonal of R: uniform over rotations and reflections (Mezzadri 2007)."""
    factors = torch.linalg.qr(_gaussian(size, seed, Purpose.DENSE_ROTATION))
    orthogonal: Tensor = factors.Q * torch.sign(torch.diagonal(factors.R))
    return orthogonal


def _gaussian(size: int, seed: int, purpose: Purpose) -> Tensor:
    return torch.tensor(seeds.normals(seed, purpose, size * size), dtype=torch.float64, device="cpu").reshape(
        size, size
    )
