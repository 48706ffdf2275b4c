"""The analytic model that chooses a variant. Mirrors kernels/sparse_mm/model.cpp.

Tiles come in waves. CUTLASS's persistent scheduler rounds a grid up to whole clusters and swizzled bands, and CTAs multiply
zeros in tiles beyond the result. The device reads weights, metadata and activations once. A step of a tile takes its tensor
core's time, or its loads' time where that is longer.
"""

from typing import NamedTuple

from gemmill.family import Row, ShapedCall

_BEGIN_NS = 799.0
"""Nanoseconds of a launch that no work hides."""
_MEMORY = 4480.0
"""Bytes that memory gives in a nanosecond."""
_SHARE = 0.485
"""The part of the shorter of the multiprocessors' and the memory's time that the other does not hide."""


class RowFacts(NamedTuple):
    """The inputs of the model for a variant. Mirrors `Facts` in kernels/sparse_mm/model.h."""

    raster_order: int
    swizzle: int
    tile_m: int
    """Rows of a in a tile."""
    tile_n: int
    """Rows of weights in a tile."""
    cluster_m: int
    """CTAs of a cluster along rows of a."""
    cluster_n: int
    tile_k: int
    """Elements along K of a step."""
    step_ps: int
    """Picoseconds of a step."""
    tile_ns: int
    """Nanoseconds of a tile's epilogue that no other tile's main loop hides."""
    bits: int
    """Bits of an element of a and of the weights."""


def tiles_of(facts: RowFacts, m: int, n: int) -> int:
    """Tiles that a launch walks over, those beyond the result among them. The scheduler halves a swizzle that a short side would
    waste: 8 wants six tiles on each side, 4 three, 2 two."""
    along_m, along_n = -(-m // facts.tile_m), -(-n // facts.tile_n)
    short = min(along_m, along_n)
    band = min(facts.swizzle, 8 if short >= 6 else 4 if short >= 3 else 2 if short >= 2 else 1)
    of_m, of_n = band * facts.cluster_m, band * facts.cluster_n
    return -(-along_m // of_m) * of_m * (-(-along_n // of_n) * of_n)


def model_ns(row: Row, call: ShapedCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call."""
    m, n, k = call.sizes
    facts: RowFacts = row.facts
    waves = -(-tiles_of(facts, m, n) // sm_count)
    steps = -(-k // facts.tile_k)
    tile = float(steps) * float(facts.step_ps) / 1000.0 + float(facts.tile_ns)
    working = float(waves) * tile
    kept = float(n) * float(k) * float(facts.bits + 2) / 16.0  # half of the elements, and a bit of metadata for two
    memory = (kept + float(m) * float(k) * float(facts.bits) / 8.0) / _MEMORY
    return _BEGIN_NS + max(working, memory) + _SHARE * min(working, memory)
