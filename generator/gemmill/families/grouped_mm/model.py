"""The analytic model that chooses a variant. Mirrors kernels/grouped_mm/model.cpp.

The host does not know how rows are dealt to experts. The model takes them as dealt evenly, with a quarter more for
those that have most. Tiles come in waves; the device reads weights of experts with rows once. One step of a tile takes
its tensor core's time, or its loads' where these take longer.
"""

from typing import NamedTuple

from gemmill.family import Row, ShapedCall

_BEGIN_NS = 3000.0
"""Nanoseconds to launch and to find rows."""
_MEMORY = 4200.0
"""Bytes that memory reads in a nanosecond."""
_STEP = 128
"""Columns of a step along K."""
_BAND = 16
"""Tiles of an expert's rows that share a sweep over its columns (gemmill.gemm.experts)."""


class RowFacts(NamedTuple):
    """Facts of a variant. Mirrors `Facts` in kernels/grouped_mm/model.h."""

    tile_m: int
    """Rows of an expert in a tile."""
    tile_n: int
    tiles_together: int
    """Tiles of columns that CTAs of a cluster take together, whether N has as many or not."""
    ctas_of_sm: int
    """CTAs that fit on a multiprocessor."""
    step_ps: int
    """Picoseconds for 128 columns along K of a tile."""
    step_of_band_ps: int
    """The same where an expert has a whole band of tiles, so that most reads are of L2."""
    bits: int
    """Bits of an element of the weights; of A too with unpacked weights."""
    end_ns: int
    """Nanoseconds of a tile's epilogue, in addition to its product."""
    n_multiple: int = 1
    """The number of results in one store, of which N is a multiple."""


def model_ns(row: Row, call: ShapedCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call."""
    m, n, k, experts = call.sizes
    facts: RowFacts = row.facts
    active = max(min(m, experts), 1)
    rows = -(-m // active)
    tiles_of_expert = -(-(rows + rows // 4) // facts.tile_m)
    clusters = active * tiles_of_expert * -(-n // (facts.tile_n * facts.tiles_together))
    tiles = clusters * facts.tiles_together
    waves = -(-tiles // (sm_count * facts.ctas_of_sm))
    steps = -(-k // _STEP)
    step_ps = facts.step_of_band_ps if tiles_of_expert >= _BAND else facts.step_ps
    tile = float(steps) * float(step_ps) / 1000.0 * float(facts.ctas_of_sm) + float(facts.end_ns)
    working = float(waves) * tile
    memory = float(active) * float(n) * float(k) * float(facts.bits) / 8.0 / _MEMORY
    return _BEGIN_NS + max(working, memory) + 0.1 * min(working, memory)


def refuses(row: Row, call: ShapedCall) -> str | None:
    """Why a variant takes no call of such sizes, apart from the limits in its row."""
    _, n, _, _ = call.sizes
    facts: RowFacts = row.facts
    return f"N is {n}, and 16 bytes of a row are stored at a time" if n % facts.n_multiple else None
