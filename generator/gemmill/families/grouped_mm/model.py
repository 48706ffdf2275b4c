"""The analytic model that chooses a variant. Mirrors kernels/grouped_mm/model.cpp.

The host does not know how rows are dealt to experts. The model takes each row as dealt at random, so an expert's number of
rows has a deviation of its root. Tiles are dealt evenly to multiprocessors, each of which takes one after another. The device
reads weights of experts with rows once; multiprocessors load them again from L2. One step of a tile takes its tensor core's
time, or its loads' where these take longer.
"""

import math
from typing import NamedTuple

from gemmill.family import Row, ShapedCall

_BEGIN_NS = 191.0
"""Nanoseconds to launch and to find rows, those apart that the rest of the time hides."""
_MEMORY = 13860.0
"""Bytes that memory reads in a nanosecond, as far as no other work hides it."""
_BAND = 16
"""Tiles of an expert's rows that share a sweep over its columns (gemmill.gemm.experts)."""
_QUANTILES = (-1.6449, -1.0364, -0.6745, -0.3853, -0.1257, 0.1257, 0.3853, 0.6745, 1.0364, 1.6449)
"""Of the normal distribution, at 5, 15 and so on to 95 %."""


class RowFacts(NamedTuple):
    """Facts of a variant. Mirrors `Facts` in kernels/grouped_mm/model.h."""

    tile_m: int
    """Rows of an expert in a tile."""
    tile_n: int
    tile_k: int
    """Columns of a step along K."""
    tiles_together: int
    """Tiles of columns that CTAs of a cluster take together, whether N has as many or not."""
    step_ps: int
    """Picoseconds of a multiprocessor for a step of a tile."""
    step_of_band_ps: int
    """The same where an expert has a whole band of tiles, so that most reads are of L2."""
    bits: int
    """Bits of an element of the weights; of A too with unpacked weights."""
    end_ns: int
    """Nanoseconds of a tile's epilogue, as far as nothing else is done meanwhile."""
    alone_permille: int
    """Permille of a tile's time where its CTA has the multiprocessor alone; 1000 where no two fit."""
    first_ns: int
    """Nanoseconds until the first step can be multiplied."""
    n_multiple: int = 1
    """The number of results in one store, of which N is a multiple."""


def tiles_of(rows: float, tile_m: int) -> float:
    """Tiles that an expert with so many rows in the mean has in the mean."""
    tiles = 0.0
    for quantile in _QUANTILES:
        tiles += max(math.ceil((rows + quantile * math.sqrt(rows)) / float(tile_m)), 1)
    return tiles / 10.0


def model_ns(row: Row, call: ShapedCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call."""
    m, n, k, experts = call.sizes
    facts: RowFacts = row.facts
    active = max(min(m, experts), 1)
    tiles_of_expert = tiles_of(float(m) / float(active), facts.tile_m)
    across = -(-n // (facts.tile_n * facts.tiles_together)) * facts.tiles_together
    of_sm = float(math.ceil(float(active) * tiles_of_expert * float(across) / float(sm_count)))
    if of_sm % 2.0:
        of_sm += float(facts.alone_permille - 1000) / 1000.0
    step_ps = facts.step_of_band_ps if tiles_of_expert >= _BAND else facts.step_ps
    tile = float(-(-k // facts.tile_k)) * float(step_ps) / 1000.0 + float(facts.end_ns)
    memory = float(active) * float(n) * float(k) * float(facts.bits) / 8.0 / _MEMORY
    return _BEGIN_NS + float(facts.first_ns) + of_sm * tile + memory


def refuses(row: Row, call: ShapedCall) -> str | None:
    """Why a variant takes no call of such sizes, apart from the limits in its row."""
    _, n, _, _ = call.sizes
    facts: RowFacts = row.facts
    return f"N is {n}, and 16 bytes of a row are stored at a time" if n % facts.n_multiple else None
