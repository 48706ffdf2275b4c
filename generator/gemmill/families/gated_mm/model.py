"""The analytic model that chooses a variant. Mirrors kernels/gated_mm/model.cpp.

Tiles come in waves, and the device reads the weights once. A step of a tile takes its tensor core's time, or its loads'
time where that is longer. It assumes an even deal of rows to experts, with a quarter more for those that have most.
"""

from typing import NamedTuple

from gemmill.family import Row, ShapedCall

_BEGIN_NS, _TILE_NS = 3000.0, 1200.0
"""Nanoseconds of a launch, and of a tile's epilogue."""
_PADDED_ROW_NS = 40.0
"""Nanoseconds for each row of a tile that a is too small for: TMA fills it more slowly than it loads one."""
_MEMORY = 4200.0
"""Bytes that memory gives in a nanosecond."""
_STEP = 128
"""Elements along K of a step."""


class RowFacts(NamedTuple):
    """The inputs of the model for a variant. Mirrors `Facts` in kernels/gated_mm/model.h."""

    tile_m: int
    """Rows of A in a tile."""
    tile_n: int
    """Rows of packed weights in a tile."""
    ctas_of_sm: int
    """CTAs that fit on a multiprocessor."""
    step_ps: int
    """Picoseconds for 128 along K of a tile."""
    overlaps: int
    """1 where a tile ends while the tensor core multiplies the next one: the last alone takes time of its own."""


def model_ns(row: Row, call: ShapedCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call."""
    m, n, k, experts = call.sizes
    facts: RowFacts = row.facts
    active = max(min(m, experts), 1)
    rows = -(-m // active)
    most = rows + rows // 4 if experts else rows
    tiles = active * -(-most // facts.tile_m) * -(-n // facts.tile_n)
    waves = -(-tiles // (sm_count * facts.ctas_of_sm))
    tile = float(-(-k // _STEP)) * float(facts.step_ps) / 1000.0 * float(facts.ctas_of_sm)
    ends = 1 if facts.overlaps else waves
    working = float(waves) * tile + float(ends) * _TILE_NS
    memory = float(active) * float(n) * float(k) / _MEMORY
    padded = _PADDED_ROW_NS * float(max(facts.tile_m - rows, 0))
    return _BEGIN_NS + max(working, memory) + 0.1 * min(working, memory) + padded
