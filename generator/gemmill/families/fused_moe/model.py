"""The analytic model that chooses a variant. Mirrors kernels/fused_moe/model.cpp.

Weights of every expert that has rows are read once for each of its tiles. The first of these reads comes from memory. A tile's
step takes the time of its loads, which grow with its rows.

Products that are grouped GEMMs are taken as those are (gemmill.families.moe.model), by the better of two tiles. Between them rows
are read and written.
"""

import math
from typing import NamedTuple

from gemmill.family import Row, ShapedCall

_MEMORY = 4000.0
"""Bytes that memory gives in a nanosecond."""
_APART_TILES = ((64, 122), (128, 209))
"""Of a grouped GEMM's tile of 128 columns: an expert's rows, and nanoseconds of a step of 128 along K of one byte each."""
_APART_TILE_END, _APART_LAUNCH, _STEP = 1200.0, 6000.0, 128
"""Nanoseconds that such a tile's end takes, and a launch (an assumption); columns of a tile, and of a step along K."""
_MOVED = 2500.0
"""Bytes a nanosecond of launches that order, activate and sum rows: an assumption."""


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
    apart: int
    """Whether both products are grouped GEMMs."""


def model_ns(row: Row, call: ShapedCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call."""
    pairs, inner, hidden, weights = call.sizes
    facts: Facts = row.facts
    if facts.apart:
        return _apart_ns(call, sm_count, facts.bits)
    active = max(min(pairs, weights), 1)
    tiles = active + pairs // facts.tile_tokens
    read = 3.0 * float(inner) * float(hidden) * float(facts.bits) / 8.0
    memory = float(active) * read / _MEMORY
    working = float(tiles) * read / 1024.0 * float(facts.tile_ps) / 1000.0 * 132.0 / float(sm_count)
    return float(facts.begin_ns) + max(memory, working) + 0.1 * min(memory, working)


def _apart_ns(call: ShapedCall, sm_count: int, bits: int) -> float:
    """The same where both products are grouped GEMMs."""
    pairs, inner, hidden, _ = call.sizes
    moved = float(pairs) * (3.5 * float(hidden) + 5.0 * float(inner)) / _MOVED
    products = _product_ns(call, 2 * inner, hidden, sm_count, bits) + _product_ns(call, hidden, inner, sm_count, bits)
    return 3.0 * _APART_LAUNCH + moved + products


def _product_ns(call: ShapedCall, n: int, k: int, sm_count: int, bits: int) -> float:
    """Nanoseconds of a grouped GEMM of [pairs, k] by [n, k] of each expert. Rows are dealt evenly, and an expert has a quarter more."""
    pairs, _, _, weights = call.sizes
    active = max(min(pairs, weights), 1)
    rows = -(-pairs // active)
    working = math.inf
    for tile, step_ns in _APART_TILES:
        tiles = active * -(-(rows + rows // 4) // tile) * -(-n // _STEP)
        waves = -(-tiles // sm_count)
        steps = float(-(-k // _STEP) * step_ns * bits) / 8.0
        working = min(working, float(waves) * (steps + _APART_TILE_END))
    memory = float(active) * float(n) * float(k) * float(bits) / 8.0 / _MEMORY
    return _APART_LAUNCH + max(working, memory) + 0.1 * min(working, memory)
