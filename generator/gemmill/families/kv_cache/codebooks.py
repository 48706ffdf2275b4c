"""Lloyd-Max codebooks for a coordinate of a random unit vector, and those of vLLM's presets.

A coordinate of a random vector, uniform on the unit sphere in d dimensions, has the density

    f(x) ~ (1 - x^2)^((d - 3) / 2) on [-1, 1],

whose limit, with x in units of 1 / sqrt(d), is the standard Gaussian (Zandieh et al., TurboQuant, arXiv 2504.19874,
lemma 1). The codebook of b bits is the set of 2^b centroids that minimises the expected squared error. Sources: Lloyd
1957; Max, "Quantizing for minimum distortion", IRE Transactions on Information Theory, 1960. The set satisfies two
conditions: each centroid is the mean of its cell, and each boundary lies halfway between two centroids. The density is
log-concave for d >= 3, so there is one such set (Fleischer 1964).

Newton's method in decimal arithmetic of 45 digits solves both conditions, so every value is the double nearest to the
true one. Integrals are series of positive terms; nothing is lost to cancellation.
"""

import functools
import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from itertools import pairwise
from statistics import NormalDist

SMALLEST_HEAD_DIM = 3
OFFERED_BITS = (1, 2, 3, 4)
_DIGITS = 45
_PI = Decimal("3.14159265358979323846264338327950288419716939937511")
_LLOYD_STEPS = 30
_NEWTON_STEPS = 40
_CONVERGED = Decimal(10) ** -35


@dataclass(frozen=True, kw_only=True)
class Codebook:
    """The least-squares scalar quantiser of one coordinate of a unit vector."""

    bits: int
    """Bits of a code."""
    head_dim: int | None
    """Dimension d of the unit vector; None for the Gaussian limit, in units of its standard deviation."""
    centroids: tuple[float, ...]
    """The values of the codes, ascending, 2^bits of them."""
    boundaries: tuple[float, ...]
    """Ascending, 2^bits - 1: code i stands for boundaries[i - 1] <= x < boundaries[i]."""
    distortion: float
    """The expected squared error of the whole unit vector; of one coordinate in the Gaussian limit."""

    def __post_init__(self) -> None:
        levels = 1 << self.bits
        if len(self.centroids) != levels or len(self.boundaries) != levels - 1:
            raise ValueError(
                f"A codebook of {self.bits} bits has {levels} centroids and {levels - 1} boundaries, "
                f"not {len(self.centroids)} and {len(self.boundaries)}."
            )


@functools.cache
def codebook(head_dim: int | None, bits: int) -> Codebook:
    """The Lloyd-Max codebook of 2^bits centroids for unit vectors of `head_dim` elements, or for the Gaussian if it is
    None.

    `bits` are 1 to 4, and `head_dim` is at least 3. Raises ValueError for other bits and smaller dimensions.
    """
    if bits not in OFFERED_BITS:
        raise ValueError(f"A codebook of {bits} bits was asked for; 1, 2, 3 and 4 are offered: choose one of these.")
    if head_dim is not None and head_dim < SMALLEST_HEAD_DIM:
        raise ValueError(
            f"A codebook for vectors of {head_dim} elements was asked for; the optimum is unique from "
            f"{SMALLEST_HEAD_DIM} elements on: take a larger head dim."
        )
    with localcontext() as context:
        context.prec = _DIGITS
        density = _Density(head_dim)
        positive = _solve(density, 1 << (bits - 1))
        edges = _edges(positive)
        second_moment = (
            sum((_mass(density, edges, i) * c * c for i, c in enumerate(positive)), start=Decimal(0)) / density.half
        )
        distortion = 1 - second_moment * (head_dim or 1)
        upper = [float(edge) for edge in edges[1:]]
        return Codebook(
            bits=bits,
            head_dim=head_dim,
            centroids=(*(-float(c) for c in reversed(positive)), *(float(c) for c in positive)),
            boundaries=(*(-edge for edge in reversed(upper)), 0.0, *upper),
            distortion=float(distortion),
        )


class _Density:
    """The density f without its factor, on x >= 0: its values, its mass up to x, its first moment beyond x."""

    def __init__(self, head_dim: int | None) -> None:
        self.head_dim = head_dim
        self.half = (_PI / 2).sqrt() if head_dim is None else _half_mass(head_dim)
        """The mass of x >= 0."""

    def _power(self, x: Decimal) -> Decimal:
        """(1 - x^2)^((d - 1) / 2); in the limit exp(-x^2 / 2)."""
        if self.head_dim is None:
            return (-x * x / 2).exp()
        base = 1 - x * x
        whole = base ** ((self.head_dim - 1) // 2)
        return whole if self.head_dim % 2 else whole * base.sqrt()

    def at(self, x: Decimal) -> Decimal:
        return self._power(x) if self.head_dim is None else self._power(x) / (1 - x * x)

    def moment_beyond(self, x: Decimal) -> Decimal:
        return self._power(x) if self.head_dim is None else self._power(x) / (self.head_dim - 1)

    def mass_below(self, x: Decimal) -> Decimal:
        """The integral of f from 0 to x.

        It is the series x (1 - x^2)^((d - 1) / 2) F(1, d / 2; 3 / 2; x^2), all of whose terms are positive.
        """
        term, total, k = Decimal(1), Decimal(1), 0
        while term > total.scaleb(-_DIGITS):
            term *= x * x / (3 + 2 * k) * (1 if self.head_dim is None else self.head_dim + 2 * k)
            total += term
            k += 1
        return x * self._power(x) * total


def _half_mass(head_dim: int) -> Decimal:
    """The integral of (1 - x^2)^((d - 3) / 2) from 0 to 1.

    It is found in steps of two in d, from pi / 2 for d = 2 or from 1 for d = 3.
    """
    mass = Decimal(1) if head_dim % 2 else _PI / 2
    for d in range(5 if head_dim % 2 else 4, head_dim + 1, 2):
        mass = mass * (d - 3) / (d - 2)
    return mass


def _edges(positive: list[Decimal]) -> list[Decimal]:
    """Lower edges of the cells at x >= 0: 0 and the midpoints."""
    return [Decimal(0), *((a + b) / 2 for a, b in pairwise(positive))]


def _mass(density: _Density, edges: list[Decimal], cell: int) -> Decimal:
    above = density.half if cell + 1 == len(edges) else density.mass_below(edges[cell + 1])
    return above - density.mass_below(edges[cell])


def _moment(density: _Density, edges: list[Decimal], cell: int) -> Decimal:
    beyond = Decimal(0) if cell + 1 == len(edges) else density.moment_beyond(edges[cell + 1])
    return density.moment_beyond(edges[cell]) - beyond


def _solve(density: _Density, count: int) -> list[Decimal]:
    """The `count` positive centroids: some of Lloyd's steps, then Newton's until nothing moves."""
    positive = _start(density, count)
    for _ in range(_LLOYD_STEPS):
        edges = _edges(positive)
        positive = [_moment(density, edges, i) / _mass(density, edges, i) for i in range(count)]
    for _ in range(_NEWTON_STEPS):
        step = _newton_step(density, positive)
        positive = [c - s for c, s in zip(positive, step, strict=True)]
        if max(abs(s) for s in step) < _CONVERGED:
            return positive
    raise ArithmeticError(f"The codebook of {2 * count} centroids did not converge in {_NEWTON_STEPS} Newton steps.")


def _start(density: _Density, count: int) -> list[Decimal]:
    """Quantiles of a Gaussian of variance 3, which is where many levels would lie, scaled into the sphere's interval."""
    normal = NormalDist(sigma=math.sqrt(3.0))
    points = [Decimal(normal.inv_cdf(0.5 + (i + 0.5) / (2 * count))) for i in range(count)]
    if density.head_dim is None:
        return points
    return [z / (density.head_dim + z * z).sqrt() for z in points]


def _newton_step(density: _Density, positive: list[Decimal]) -> list[Decimal]:
    """The numbers to subtract from the centroids in a Newton step.

    The system c_i mass_i - moment_i = 0 is tridiagonal: elimination runs in order.
    """
    edges = _edges(positive)
    count = len(positive)
    half_density = [Decimal(0), *(density.at(edge) / 2 for edge in edges[1:]), Decimal(0)]
    outer_edges = [*edges, Decimal(0)]
    upper: list[Decimal] = []
    right: list[Decimal] = []
    for i, c in enumerate(positive):
        mass = _mass(density, edges, i)
        from_below = (c - outer_edges[i]) * half_density[i]
        from_above = (c - outer_edges[i + 1]) * half_density[i + 1]
        diagonal, residual = mass - from_below + from_above, c * mass - _moment(density, edges, i)
        if i:
            diagonal += from_below * upper[-1]
            residual += from_below * right[-1]
        upper.append(from_above / diagonal)
        right.append(residual / diagonal)
    step = [right[-1]]
    for i in range(count - 2, -1, -1):
        step.append(right[i] - upper[i] * step[-1])
    return step[::-1]
