"""The analytic model that chooses a variant. Mirrors kernels/sparse_mm/model.cpp.

Tiles come in waves. CUTLASS's persistent scheduler rounds a grid up to whole clusters and swizzled bands, and CTAs multiply
zeros in tiles beyond the result. The device reads weights, metadata and activations once. A step of a tile takes its tensor
core's time, or its loads' time where that is longer.

Stream-K divides the steps of the last waves evenly among the multiprocessors. Those that share a tile add their sums in a
workspace, in the order of K. Of two groups of warps by turns each has every other tile of a CTA.
"""

from typing import NamedTuple

from gemmill.family import Row, ShapedCall

_BEGIN_NS = 656.0
"""Nanoseconds of a launch that no work hides."""
_MEMORY = 5466.0
"""Bytes that memory gives in a nanosecond."""
_SHARE = 0.347
"""The part of the shorter of the multiprocessors' and the memory's time that the other does not hide."""
_SLOWED = 0.407
"""How much longer a tile takes for each other CTA on its multiprocessor, as a part of its time."""
_LEAST_STEPS = 8
"""Fewest steps of a slice. Stream-K leaves tiles whole that have no more."""


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
    join_ns: int
    """Nanoseconds in which the CTAs of a tile add their sums, by stream-K; 0 where tiles are whole."""
    ctas_of_sm: int
    """CTAs that share a multiprocessor."""
    turn_ns: int
    """Nanoseconds of a tile's epilogue to the group of warps that has it, where two take turns; else 0."""


def tiles_of(facts: RowFacts, m: int, n: int) -> int:
    """Tiles that a launch walks over, those beyond the result among them. The scheduler halves a swizzle that a short side would
    waste: 8 wants six tiles on each side, 4 three, 2 two."""
    along_m, along_n = -(-m // facts.tile_m), -(-n // facts.tile_n)
    short = min(along_m, along_n)
    band = min(facts.swizzle, 8 if short >= 6 else 4 if short >= 3 else 2 if short >= 2 else 1)
    of_m, of_n = band * facts.cluster_m, band * facts.cluster_n
    return -(-along_m // of_m) * of_m * (-(-along_n // of_n) * of_n)


class Slices(NamedTuple):
    """How stream-K divides the tiles of a launch."""

    waves: int
    """Waves of whole tiles, before the slices."""
    steps: int
    """Steps of each CTA after them."""


def slices_of(facts: RowFacts, tiles: int, steps: int, sm_count: int) -> Slices | None:
    """The division of `tiles` of so many steps. None where all tiles stay whole: they fill their waves, or have few steps."""
    if not facts.join_ns or tiles % sm_count == 0 or steps <= _LEAST_STEPS:
        return None
    waves = max(tiles // sm_count - 1, 0)
    sliced = tiles - waves * sm_count
    ctas = min(sm_count, sliced * steps // _LEAST_STEPS)
    return Slices(waves=waves, steps=-(-sliced * steps // ctas))


def model_ns(row: Row, call: ShapedCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call."""
    m, n, k = call.sizes
    facts: RowFacts = row.facts
    tiles, steps = tiles_of(facts, m, n), -(-k // facts.tile_k)
    main = float(steps) * float(facts.step_ps) / 1000.0
    tile = main + float(facts.tile_ns)
    slices = slices_of(facts, tiles, steps, sm_count)
    if slices is None:
        ctas = min(facts.ctas_of_sm, max(-(-tiles // sm_count), 1))
        waves = -(-tiles // (sm_count * ctas))
        working = float(waves) * tile * (1.0 + _SLOWED * float(ctas - 1))
        if facts.turn_ns:
            working = max(working, float(-(-waves // 2)) * (main + float(facts.turn_ns)))
    else:
        last = float(slices.steps) * float(facts.step_ps) / 1000.0 + float(facts.tile_ns)
        working = float(slices.waves) * tile + last + float(facts.join_ns)
    kept = float(n) * float(k) * float(facts.bits + 2) / 16.0  # half of the elements, and a bit of metadata for two
    memory = (kept + float(m) * float(k) * float(facts.bits) / 8.0) / _MEMORY
    return _BEGIN_NS + max(working, memory) + _SHARE * min(working, memory)
