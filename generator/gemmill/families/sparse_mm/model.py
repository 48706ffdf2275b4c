"""The analytic model that chooses a variant. Mirrors kernels/sparse_mm/model.cpp.

Tiles come in waves. The device reads weights, metadata and activations once. A step of a tile takes its tensor core's
time, or its loads' time where that is longer.
"""

from typing import NamedTuple

from gemmill.family import Row, ShapedCall

_BEGIN_NS, _TILE_NS = 3000.0, 1200.0
"""Nanoseconds of a launch, and of a tile's epilogue."""
_MEMORY = 4200.0
"""Bytes that memory gives in a nanosecond."""
_STEP = 128
"""Elements along K of a step."""


class RowFacts(NamedTuple):
    """The inputs of the model for a variant. Mirrors `Facts` in kernels/sparse_mm/model.h."""

    raster_order: int
    swizzle: int
    tile_m: int
    """Rows of a in a tile."""
    tile_n: int
    """Rows of weights in a tile."""
    step_ps: int
    """Picoseconds for 128 along K of a tile."""
    bits: int
    """Bits of an element of a and of the weights."""


def model_ns(row: Row, call: ShapedCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call."""
    m, n, k = call.sizes
    facts: RowFacts = row.facts
    tiles = -(-m // facts.tile_m) * -(-n // facts.tile_n)
    waves = -(-tiles // sm_count)
    steps = -(-k // _STEP)
    tile = float(steps) * float(facts.step_ps) / 1000.0 + _TILE_NS
    working = float(waves) * tile
    kept = float(n) * float(k) * float(facts.bits + 2) / 16.0  # half of the elements, and a bit of metadata for two
    memory = (kept + float(m) * float(k) * float(facts.bits) / 8.0) / _MEMORY
    return _BEGIN_NS + max(working, memory) + 0.1 * min(working, memory)
