"""The analytic model that chooses a variant. Mirrors kernels/fused_experts/model.cpp.

Each tile of an expert with rows reads the expert's weights once. The first of these reads comes from memory. A tile's
step takes the time of its loads, which grow with its rows. Where tiles are few, a tile's steps alone take as long as a product.

Where activations become codes, a tile's last warps code its rows, one row after another. A warp that codes stores no
parts of tiles, which other tiles then wait for: so the time grows with all rows, too. Persistent tiles of up to 16 rows
are coded piece by piece, which costs nothing here.

Grouped GEMMs take waves of the better of two tiles, which is simpler than gemmill.families.grouped_mm.model. Between them the
device reads and writes rows.
"""

import math
from typing import NamedTuple

from gemmill.family import Row, ShapedCall

_MEMORY, _APART_MEMORY = 4000.0, 3740.0
"""Bytes that memory gives in a nanosecond, and to grouped GEMMs."""
_STEP = 128
"""Columns along K of a step of streamed weights and of grouped GEMMs, and columns of the latter's tiles."""
_STREAMED_ROWS, _STREAMED_TURN, _STREAMED_PARTS = 256, 2900.0, 1340.0
"""Rows of weights of a streamed tile; nanoseconds that a tile takes apart from its steps; bytes a nanosecond of float32 results, which
are written and read."""
_APART_TILES = ((64, 340.0), (128, 550.0))
"""Of a grouped GEMM's tile: an expert's rows, and nanoseconds of a step of e4m3. Elements of 16 bits take twice as many."""
_APART_LAUNCHES, _APART_MOVED = 17000.0, 2600.0
"""Nanoseconds of five launches of few rows, and bytes a nanosecond of launches that order, activate and sum rows."""
_FEW_PAIRS, _FEW_TIMES = 48, 1.4
"""Rows of all experts below which grouped GEMMs read weights that many times as slowly.

Constants of streamed weights are fitted to 46 calls of nine layers, eight of them random (H200, 2026-11-25), those of grouped GEMMs to
171 calls of 29 layers (H200, 2026-11-26 to 2026-11-28; docs/notes/fused_experts.md).
"""

_BOXED_BEGIN, _BOXED_TURN, _BOXED_MEMORY, _BOXED_MOVED = 10500.0, 800.0, 3200.0, 2800.0
"""Of boxed tiles: nanoseconds of three launches, and of a tile apart from its columns; bytes a nanosecond of weights, and of ordered rows,
results and parts, which are written and read (H200, 2026-11-29)."""
_BOX = 8
"""Rows of the smallest box."""
_WAITED_ROWS = 40.0
"""Rows of all experts that cost as much as one more row to code (H200, 2026-11-28)."""


class RowFacts(NamedTuple):
    """The inputs of the model for a variant. Mirrors `Facts` in kernels/fused_experts/model.h."""

    tile_tokens: int
    """Rows of an expert that a CTA takes together."""
    bits: int
    """Bits of an element of weights."""
    tile_ps: int
    """Picoseconds for 1,024 bytes of weights by a tile's rows, of 132 multiprocessors together."""
    begin_ns: int
    """Nanoseconds of three launches of few tiles."""
    apart: int
    """Whether grouped GEMMs compute both products."""
    streamed: int
    """Whether TMA streams weights to tiles of 256 of their rows."""
    code_ps: int
    """Picoseconds in which a warp codes an element of the first product's results; 0 where these are no codes."""
    coders: int
    """Warps that code a tile's rows."""
    alone_ps: int
    """Picoseconds of a column along K in a tile whose multiprocessor has no other."""
    few_ps: int
    """Of a boxed tile: picoseconds of a column along K with eight rows."""
    many_ps: int
    """The same of a full tile; 0 of other tiles."""
    tile_n: int
    """Its rows of weights."""
    ctas_of_sm: int
    """CTAs of a multiprocessor."""


def model_ns(row: Row, call: ShapedCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call."""
    pairs, inner, hidden, _ = call.sizes
    facts: RowFacts = row.facts
    if facts.apart:
        return _apart_ns(call, sm_count, facts.bits)
    if facts.streamed:
        return _streamed_ns(facts, call, sm_count)
    if facts.many_ps:
        return _boxed_ns(facts, call, sm_count)
    active, tiles = _dealt(call, facts.tile_tokens)
    if facts.bits >= 8:
        tiles = active + float(pairs // facts.tile_tokens)
    taken = float(facts.begin_ns) + _coding_ns(facts, pairs, inner, active)
    for rows, k in ((2 * inner, hidden), (hidden, inner)):
        read = float(rows) * float(k) * float(facts.bits) / 8.0
        memory = active * read / _MEMORY
        working = tiles * read / 1024.0 * float(facts.tile_ps) / 1000.0 * 132.0 / float(sm_count)
        alone = float(k) * float(facts.alone_ps) / 1000.0
        taken += max(memory, working, alone) + 0.1 * min(memory, working)
    return taken


def _coding_ns(facts: RowFacts, pairs: int, inner: int, active: float) -> float:
    """The part of it in which results become codes. The fullest tile has about twice as many rows as the mean."""
    if not facts.code_ps:
        return 0.0
    fullest = min(float(facts.tile_tokens), 2.0 * float(pairs) / active - 1.0)
    rows = max(1.0, fullest / float(facts.coders)) + float(pairs) / (_WAITED_ROWS * float(facts.coders))
    return float(facts.code_ps) / 1000.0 * float(inner) * rows


def _boxed_ns(facts: RowFacts, call: ShapedCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call by tiles whose rows come in boxes. A column takes longer the more boxes a tile has. CTAs take tiles as
    they become free, so the part of the last wave that has no tiles counts half."""
    pairs, inner, hidden, _ = call.sizes
    active, tiles = _dealt(call, facts.tile_tokens)
    full = min(max((float(pairs) / tiles - float(_BOX)) / float(facts.tile_tokens - _BOX), 0.0), 1.0)
    column_ns = (float(facts.few_ps) + float(facts.many_ps - facts.few_ps) * full) / 1000.0
    taken = _BOXED_BEGIN + float(pairs) * (8.0 * float(hidden) + 4.0 * float(inner)) / _BOXED_MOVED
    for rows, k in ((2 * inner, hidden), (hidden, inner)):
        memory = active * float(rows) * float(k) * float(facts.bits) / 8.0 / _BOXED_MEMORY
        waves = tiles * float(-(-rows // facts.tile_n)) / float(sm_count * facts.ctas_of_sm)
        working = max(0.5 * (waves + float(math.ceil(waves))), 1.0) * (float(k) * column_ns + _BOXED_TURN)
        taken += max(memory, working) + 0.1 * min(memory, working)
    return taken


def _streamed_ns(facts: RowFacts, call: ShapedCall, sm_count: int) -> float:
    """The same of streamed weights. Tiles of 8 rows have two CTAs in the first product, with half of the weights' rows each."""
    pairs, inner, hidden, _ = call.sizes
    active, tiles = _dealt(call, facts.tile_tokens)
    step, halves = float(facts.tile_ps) * 132.0 * 32.0 / 1000.0, 2 if facts.tile_tokens == 8 else 1
    working = 0.0
    for rows, k, share in ((2 * inner, hidden, halves), (hidden, inner, 1)):
        waves = math.ceil(tiles * float(-(-rows * share // _STREAMED_ROWS)) / float(sm_count))
        working += float(waves) * (float(-(-k // _STEP)) * step / float(share) + _STREAMED_TURN)
    memory = active * 3.0 * float(inner) * float(hidden) * float(facts.bits) / 8.0 / _MEMORY
    parts = float(pairs) * 8.0 * float(hidden) / _STREAMED_PARTS
    return float(facts.begin_ns) + parts + max(memory, working) + 0.1 * min(memory, working)


def _dealt(call: ShapedCall, rows: int) -> tuple[float, float]:
    """Experts that have rows, and tiles of so many rows of them, where each row's expert is as likely as any."""
    pairs, _, _, weights = call.sizes
    active = max(float(weights) * (1.0 - math.exp(-float(pairs) / float(max(weights, 1)))), 1.0)
    return active, max(active, float(pairs) / float(rows) + 0.5 * active)


def _apart_ns(call: ShapedCall, sm_count: int, bits: int) -> float:
    """The same where grouped GEMMs compute both products."""
    pairs, inner, hidden, _ = call.sizes
    element = float(bits) / 8.0
    moved = float(pairs) * ((2.5 + element) * float(hidden) + (4.0 + element) * float(inner)) / _APART_MOVED
    products = _product_ns(call, 2 * inner, hidden, sm_count, bits) + _product_ns(call, hidden, inner, sm_count, bits)
    return _APART_LAUNCHES + moved + products


def _product_ns(call: ShapedCall, n: int, k: int, sm_count: int, bits: int) -> float:
    """Nanoseconds of a grouped GEMM of [pairs, k] by [n, k] of each expert."""
    pairs, working, active = call.sizes[0], math.inf, 1.0
    for rows, step_ns in _APART_TILES:
        active, tiles = _dealt(call, rows)
        waves = math.ceil(tiles * float(-(-n // _STEP)) / float(sm_count))
        working = min(working, float(waves) * float(-(-k // _STEP)) * step_ns * float(bits) / 8.0)
    memory = active * float(n) * float(k) * float(bits) / 8.0 / _APART_MEMORY
    if pairs < _FEW_PAIRS:
        memory *= _FEW_TIMES
    return max(working, memory) + 0.1 * min(working, memory)
