"""The centroids that vLLM 0.33.0 stores keys with, to the last bit of their float32 values.

vLLM does not use the density of a sphere's coordinate but its Gaussian limit N(0, 1 / d). It integrates by the
trapezoidal rule: 200 steps a cell, the outer cells ending at 10.5 standard deviations. Lloyd's iteration starts from
the middles of equal cells over 3.5 standard deviations either side. It stops after 200 steps, or when no centroid moves
by 1e-10 (`vllm/model_executor/layers/quantization/turboquant/centroids.py`). Its centroids are therefore up to 0.0017
standard deviations away from the optimum. A cache holds indices into them, so a reader needs the same ones.
"""

import functools
import math
import struct
from collections.abc import Callable
from itertools import pairwise

from gemmill.families.kv_cache.codebooks import Codebook

OFFERED_BITS = (3, 4)
_STEPS_OF_CELL = 200
_ITERATIONS = 200
_SETTLED = 1e-10
_EMPTY = 1e-15


@functools.cache
def vllm_codebook(head_dim: int, bits: int) -> Codebook:
    """vLLM's centroids and decision boundaries for keys of `head_dim` elements in 3 or 4 bits, as float32 values.

    `distortion` is that of these centroids on N(0, 1 / d), times d. Raises ValueError for other bits.
    """
    if bits not in OFFERED_BITS:
        raise ValueError(
            f"vLLM's centroids of {bits} bits were asked for; its presets have 3 and 4: choose one of these."
        )
    sigma = math.sqrt(1.0 / head_dim)
    variance = 1.0 / head_dim

    peak, spread = 1.0 / math.sqrt(2 * math.pi * variance), 2 * variance

    def density(x: float) -> float:
        return peak * math.exp(-x * x / spread)

    centroids = tuple(_float32(c) for c in _lloyd(density, 3.5 * sigma, 1 << bits))
    boundaries = tuple(_float32(a + b) / 2 for a, b in pairwise(centroids))
    edges = (-10.5 * sigma, *boundaries, 10.5 * sigma)

    def error_of(centroid: float, left: float, right: float) -> float:
        return _trapezoid(lambda x: (x - centroid) ** 2 * density(x), left, right)

    error = sum(map(error_of, centroids, edges, edges[1:]))
    return Codebook(
        bits=bits, head_dim=head_dim, centroids=centroids, boundaries=boundaries, distortion=error * head_dim
    )


def _lloyd(density: Callable[[float], float], reach: float, levels: int) -> list[float]:
    low, high = -reach, reach
    centroids = [low + (high - low) * (i + 0.5) / levels for i in range(levels)]
    for _ in range(_ITERATIONS):
        middles = [(a + b) / 2.0 for a, b in pairwise(centroids)]
        edges = [low * 3, *middles, high * 3]
        moved = []
        for old, left, right in zip(centroids, edges, edges[1:], strict=False):
            mass, moment = _mass_and_moment(density, left, right)
            moved.append(moment / mass if mass > _EMPTY else old)
        if max(abs(a - b) for a, b in zip(moved, centroids, strict=True)) < _SETTLED:
            break
        centroids = moved
    return centroids


def _mass_and_moment(density: Callable[[float], float], left: float, right: float) -> tuple[float, float]:
    """The integrals of density(x) and x density(x), each added up in the order of `_trapezoid`."""
    step = (right - left) / _STEPS_OF_CELL
    at_left, at_right = density(left), density(right)
    mass, moment = 0.5 * (at_left + at_right), 0.5 * (left * at_left + right * at_right)
    for i in range(1, _STEPS_OF_CELL):
        x = left + i * step
        here = density(x)
        mass += here
        moment += x * here
    return mass * step, moment * step


def _trapezoid(function: Callable[[float], float], left: float, right: float) -> float:
    step = (right - left) / _STEPS_OF_CELL
    total = 0.5 * (function(left) + function(right))
    for i in range(1, _STEPS_OF_CELL):
        total += function(left + i * step)
    return total * step


def _float32(x: float) -> float:
    """The float32 nearest to x."""
    return float(struct.unpack("f", struct.pack("f", x))[0])
