"""The analytic model that chooses a variant. Mirrors kernels/fused_moe/model.cpp.

Weights of every expert that has rows are read once for each of its tiles. The first of these reads comes from memory. A tile's
step takes the time of its loads, which grow with its rows.
"""

from typing import NamedTuple

from gemmill.family import Row, ShapedCall

_MEMORY = 4000.0
"""Bytes that memory gives in a nanosecond."""


class Facts(NamedTuple):
    """What the model reads of a variant. Mirrors `Facts` in kernels/fused_moe/model.h."""

    tile_tokens: int
    """Rows of an expert that a CTA takes together."""
    bits: int
    """Bits of an element of weights."""
    tile_ps: int
    """Picoseconds for 1,024 bytes of weights by a tile's rows, of 132 multiprocessors together."""
    begin_ns: int
    """Nanoseconds of three launches of few tiles."""


def model_ns(row: Row, call: ShapedCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call."""
    pairs, inner, hidden, weights = call.sizes
    facts: Facts = row.facts
    active = max(min(pairs, weights), 1)
    tiles = active + pairs // facts.tile_tokens
    read = 3.0 * float(inner) * float(hidden) * float(facts.bits) / 8.0
    memory = float(active) * read / _MEMORY
    working = float(tiles) * read / 1024.0 * float(facts.tile_ps) / 1000.0 * 132.0 / float(sm_count)
    return float(facts.begin_ns) + max(memory, working) + 0.1 * min(memory, working)
