"""The analytic model that chooses a variant. Mirrors kernels/gated_mm/model.cpp.

Tiles come in waves, and the device reads the weights once, more slowly where a last wave of tall tiles leaves multiprocessors idle. A
step of a tile takes its tensor core's time, or its loads' time where that is longer. It assumes an even deal of rows to experts, with a quarter more for those that have most.
"""

import math
from typing import NamedTuple

from gemmill.family import Row, ShapedCall

_BEGIN_NS, _TILE_NS = 3000.0, 1200.0
"""Nanoseconds of a launch, and of a tile's epilogue."""
_PADDED_ROW_NS = 40.0
"""Nanoseconds for each row of a tile that a is too small for: TMA fills it more slowly than it loads one."""
_MEMORY = 4800.0
"""Bytes that memory gives in a nanosecond."""
_TALL = 256
"""Rows of packed weights of a tile from which on idle multiprocessors cost bandwidth. With 112 of 132 busy, reads take 1.09 to 1.10
times as long, and with 0.73 of them 1.15 times; tiles of 64 and 128 rows show no loss (H200, 2026-11-23 and 2026-11-27)."""
_ALONE = 0.7
"""The least share of a step's time where fewer than half of the multiprocessors have a tile: 48 of 256 x 16 took 330 of 464 ns (H200, 2026-11-23)."""
_STEP = 128
"""Elements along K of a step."""
_PLAIN_BEGIN_NS, _PLAIN_MEMORY, _PLAIN_HIDDEN = 2200.0, 5100.0, 0.3
"""Of a plain GEMM that makes the product of rows without experts: nanoseconds of a launch, bytes that memory gives in a nanosecond, and
the share of the shorter of multiplying and reading that the longer does not hide."""
_PLAIN_PRODUCTS, _PLAIN_LOADED, _PLAIN_STEP_NS = 5100.0, 115.0, 70.0
"""Its multiply-adds and loaded bytes a nanosecond on a multiprocessor, and the least nanoseconds of a step."""
_SLICES, _STEPS_OF_SLICE, _JOINING_NS = 8, 4, 2300.0
"""Its most slices of K, the least steps of one, and nanoseconds to add them up."""
_PLAIN_TILES = (
    *((rows, columns) for rows in (16, 32, 64, 96, 128) for columns in (64, 128)),
    *((rows, 128) for rows in (160, 192, 256)),
)
"""Its tiles: rows of A and of weights. Constants and tiles fit 48 products of random calls within 6 % (root mean square), and 7 % where a
fit knew the other 24 of them; scaled_mm's own model, which needs the build's variants, 8 % (H200, 2026-11-28; notes)."""


_ACTIVATION_NS, _MOVED, _MOVING = 1700.0, 2.5, 2200.0
"""Nanoseconds of the second of two launches, bytes that it reads and writes for each packed column of a row, and bytes that move in a
nanosecond."""


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
        return _product_ns(facts, call, sm_count)
    if experts:
        product = min(_product_ns(of_tile, call, sm_count) for of_tile in _GROUPED)
    else:
        product = min(_plain_ns(tile, m, n, k, sm_count) for tile in _PLAIN_TILES)
    return product + _ACTIVATION_NS + _MOVED * float(m) * float(n) / _MOVING


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


def _product_ns(facts: RowFacts, call: ShapedCall, sm_count: int) -> float:
    """The same of one kernel that multiplies."""
    m, n, k, experts = call.sizes
    active = max(min(m, experts), 1)
    rows = -(-m // active)
    most = rows + rows // 4 if experts else rows
    of_rows = -(-most // (facts.tile_m * facts.cluster)) * facts.cluster
    tiles = active * of_rows * -(-n // facts.tile_n)
    waves = -(-tiles // (sm_count * facts.ctas_of_sm))
    tile = float(-(-k // _STEP)) * float(facts.step_ps) / 1000.0 * float(facts.ctas_of_sm)
    if 2 * tiles < sm_count:
        tile *= max(_ALONE, math.sqrt(float(tiles) / float(sm_count)))
    ends = 1 if facts.overlaps else waves
    working = float(waves) * tile + float(ends) * _TILE_NS
    memory = float(active) * float(n) * float(k) / _MEMORY
    if facts.tile_n >= _TALL and 2 * tiles >= sm_count:
        memory /= math.sqrt(float(tiles) / float(-(-tiles // sm_count) * sm_count))
    padded = _PADDED_ROW_NS * float(max(facts.tile_m - rows, 0))
    return _BEGIN_NS + max(working, memory) + 0.1 * min(working, memory) + padded
