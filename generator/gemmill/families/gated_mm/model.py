"""The analytic model that chooses a variant. Mirrors kernels/gated_mm/model.cpp.

Tiles come in waves, and the device reads the weights once, more slowly where a last wave of tall tiles leaves multiprocessors idle. A
step of a tile takes its tensor core's time, or its loads' time where that is longer. It assumes an even deal of rows to experts, with a quarter more for those that have most.
"""

import math
from typing import NamedTuple

from gemmill.family import Row, ShapedCall


class _Times(NamedTuple):
    """Of kernels that multiply and activate at once."""

    begin_ns: float
    """Nanoseconds of a launch."""
    tile_ns: float
    overlapped_tile_ns: float
    """Nanoseconds of a tile's epilogue, and of the last one's where a tile ends while the next one is multiplied."""
    padded_row_ns: float
    """Nanoseconds for each row of a tile that a is too small for: TMA fills it more slowly than it loads one."""
    memory: float
    tall_memory: float
    """Bytes that memory gives in a nanosecond, and to tall tiles."""
    unhidden: float
    """The share of the shorter of multiplying and reading that the longer does not hide."""
    alone: float
    """The least share of a step's time where fewer than half of the multiprocessors have a tile."""
    products: float
    """Multiply-adds a nanosecond of such a multiprocessor at most."""


_OF_ROWS = _Times(
    begin_ns=1234.0,
    tile_ns=449.0,
    overlapped_tile_ns=1144.0,
    padded_row_ns=83.0,
    memory=5496.0,
    tall_memory=5003.0,
    unhidden=0.252,
    alone=0.556,
    products=5108.0,
)
"""Fitted to calls of random layers (docs/notes/gated_mm.md)."""
_OF_EXPERTS = _Times(
    begin_ns=3000.0,
    tile_ns=1200.0,
    overlapped_tile_ns=1200.0,
    padded_row_ns=40.0,
    memory=4800.0,
    tall_memory=4800.0,
    unhidden=0.1,
    alone=0.7,
    products=math.inf,
)
TALL = 256
"""Rows of packed weights of a tile from which on idle multiprocessors cost bandwidth. With 112 of 132 busy, reads take 1.09 to 1.10
times as long, and with 0.73 of them 1.15 times; tiles of 64 and 128 rows show no loss (H200, 2026-11-23 and 2026-11-27)."""
_STEP = 128
"""Elements along K of a step."""
_PLAIN_BEGIN_NS, _PLAIN_MEMORY, _PLAIN_HIDDEN = 1929.0, 4500.0, 0.216
"""Of a plain GEMM that makes the product of rows without experts: nanoseconds of a launch, bytes that memory gives in a nanosecond, and
the share of the shorter of multiplying and reading that the longer does not hide."""
_PLAIN_PRODUCTS, _PLAIN_LOADED, _PLAIN_STEP_NS = 5103.0, 223.0, 23.0
"""Its multiply-adds and loaded bytes a nanosecond on a multiprocessor, and the least nanoseconds of a step."""
_SLICES, _STEPS_OF_SLICE, _JOINING_NS = 8, 4, 1404.0
"""Its most slices of K, the least steps of one, and nanoseconds to add them up."""
_PLAIN_TILES = (
    *((rows, columns) for rows in (16, 32, 64, 96, 128) for columns in (64, 128)),
    *((rows, 128) for rows in (160, 192, 256)),
)
"""Its tiles: rows of A and of weights."""

_MOVED = 2.5
"""Bytes that the second of two launches reads and writes for each packed column of a row."""
_ACTIVATION_NS, _MOVING = 882.0, 2229.0
_ACTIVATION_OF_EXPERTS_NS, _MOVING_OF_EXPERTS = 1700.0, 2200.0
"""Nanoseconds of the second launch, and bytes that move in one."""


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
    parts: int
    """1 where a plain GEMM stores the product and a kernel of its own activates it: other facts mean nothing then."""
    cluster: int = 1
    """CTAs of a cluster along M, which have a tile each, with rows or not."""


def _grouped(tile_m: int, tile_n: int, step_ps: int, overlaps: int = 0) -> RowFacts:
    return RowFacts(tile_m=tile_m, tile_n=tile_n, ctas_of_sm=1, step_ps=step_ps, overlaps=overlaps, parts=0)


_GROUPED = (
    _grouped(16, 64, 136_000),
    _grouped(32, 128, 273_000),
    _grouped(64, 128, 327_000),
    _grouped(128, 128, 437_000, 1),
    _grouped(128, 192, 629_000, 1),
)
"""Tiles of grouped GEMMs for a small, a medium and a large M; a step takes as long as of a gated one of the same size."""


def model_ns(row: Row, call: ShapedCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call."""
    m, n, k, experts = call.sizes
    facts: RowFacts = row.facts
    if not facts.parts:
        return _product_ns(facts, call, sm_count, _OF_EXPERTS if experts else _OF_ROWS)
    moved = _MOVED * float(m) * float(n)
    if experts:
        product = min(_product_ns(of_tile, call, sm_count, _OF_EXPERTS) for of_tile in _GROUPED)
        return product + _ACTIVATION_OF_EXPERTS_NS + moved / _MOVING_OF_EXPERTS
    product = min(_plain_ns(tile, m, n, k, sm_count) for tile in _PLAIN_TILES)
    return product + _ACTIVATION_NS + moved / _MOVING


def _plain_ns(tile: tuple[int, int], m: int, n: int, k: int, sm_count: int) -> float:
    """The same of a plain GEMM, which may divide K into slices where its tiles leave multiprocessors idle."""
    rows, columns = tile
    tiles = -(-m // rows) * -(-n // columns)
    steps = -(-k // _STEP)
    slices = max(min(_SLICES, sm_count // max(tiles, 1), steps // _STEPS_OF_SLICE), 1)
    waves = -(-tiles // sm_count)
    products, loaded = float(rows * columns * _STEP), float((rows + columns) * _STEP)
    step = max(products / _PLAIN_PRODUCTS, loaded / _PLAIN_LOADED, _PLAIN_STEP_NS)
    working = float(waves * -(-steps // slices)) * step + (_JOINING_NS if slices > 1 else 0.0)
    memory = float(n) * float(k) / _PLAIN_MEMORY
    return _PLAIN_BEGIN_NS + max(working, memory) + _PLAIN_HIDDEN * min(working, memory)


def _product_ns(facts: RowFacts, call: ShapedCall, sm_count: int, times: _Times) -> float:
    """The same of one kernel that multiplies."""
    m, n, k, experts = call.sizes
    active = max(min(m, experts), 1)
    rows = -(-m // active)
    most = rows + rows // 4 if experts else rows
    of_rows = -(-most // (facts.tile_m * facts.cluster)) * facts.cluster
    tiles = active * of_rows * -(-n // facts.tile_n)
    waves = -(-tiles // (sm_count * facts.ctas_of_sm))
    step = float(facts.step_ps) / 1000.0
    if 2 * tiles < sm_count:
        step *= max(times.alone, math.sqrt(float(tiles) / float(sm_count)))
        step = max(step, float(facts.tile_m * facts.tile_n * _STEP) / times.products)
    tile = float(-(-k // _STEP)) * step * float(facts.ctas_of_sm)
    ends = times.overlapped_tile_ns if facts.overlaps else float(waves) * times.tile_ns
    working = float(waves) * tile + ends
    memory = float(active) * float(n) * float(k) / (times.tall_memory if facts.tile_n >= TALL else times.memory)
    if facts.tile_n >= TALL and 2 * tiles >= sm_count:
        memory /= math.sqrt(float(tiles) / float(-(-tiles // sm_count) * sm_count))
    padded = times.padded_row_ns * float(max(facts.tile_m - rows, 0))
    return times.begin_ns + max(working, memory) + times.unhidden * min(working, memory) + padded
