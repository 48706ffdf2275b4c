"""The analytic model that chooses where nothing was measured. Mirrors kernels/scaled_mm/model.cpp.

Waves of CTAs, each of which takes step after step along K (the tensor core multiplies while the next operands land), adds up
slices of K in shared memory if there are any, and stores its tile. The time of all waves and the time that memory needs for
the operands are joined by a smooth maximum.

The constants are fitted to the times of up to 40 variants at 628 shapes of all ops and of 512 variants at 52 of them (H200,
2026-11-20 and 21), for the loss of the variant that comes out first: docs/notes/tables.md has what it is. They are near what
the machine has, but not measurements of it: 5,000 multiply-adds and 201 bytes of shared memory a nanosecond and SM, 11,890 bytes
from L2 and 2,154 from memory for all, 40 MB of L2. Rows beyond A are filled with zeros at 50 bytes a nanosecond
(docs/notes/groups.md).
"""

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from gemmill.families.scaled_mm.classes import class_of
from gemmill.family import ProblemCall, Row

L2_BYTES = 40_000_000
"""What of the L2 operands can keep."""

BANDS = ((8, 6), (4, 3), (2, 2))
"""Widths of bands that CUTLASS's scheduler uses, and from how many tiles of the shorter side on."""


class Facts(NamedTuple):
    """Of a variant. Mirrors `GemmFacts` in kernels/scaled_mm/model.h."""

    raster_order: int
    swizzle: int
    splits: int
    tile_m: int
    """Along M of the op, as the next two along N and K."""
    tile_n: int
    tile_k: int
    """In bytes."""
    columns: int
    """Of the tile, as the tensor core sees it: tile_n, or tile_m of a transposed kernel."""
    sharers_a: int
    """CTAs of a cluster that load a tile of A together."""
    sharers_b: int
    pads: int
    """Whether it rounds the tiles of a call up to whole bands, as CUTLASS's scheduler does."""
    ctas_of_sm: int
    """That fit on an SM."""
    overlaps: int
    """Whether a tile is stored while the next is multiplied."""
    promotes: int
    """Whether sums leave the tensor core's accumulator before the end of K."""
    divides_k: int
    """Whether slices of K are added up in the shared memory of a cluster."""
    cost_permille: int
    """How much longer than the model's time its schedule takes, 1000 for the same."""


def model_ns(of: Row, call: ProblemCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call by a variant, on a device of `sm_count` multiprocessors."""
    row, (m, n, k) = of.facts, call.sizes
    splits = max(row.splits, 1)
    tiles = ctas_of(row, m, n)
    k *= class_of(call.problem).operand.bits // 8  # bytes, as tile_k
    steps = float(_ceil_div(_ceil_div(k, row.tile_k), splits))
    per_sm = min(row.ctas_of_sm, _ceil_div(tiles, sm_count))
    resident = float(min(tiles, sm_count * per_sm))
    waves = float(_ceil_div(tiles, sm_count * per_sm))

    columns = float(row.columns)
    instructions = float(row.tile_m * row.tile_n // row.columns) / 64.0 * (row.tile_k / 32.0)
    multiply = instructions * max(64.0 * columns * 32.0 / 5000.0, (2048.0 + 32.0 * columns) / 200.6)
    if row.promotes:
        multiply = 1.146 * multiply + 115.8 * (row.tile_k / 128.0)
    rows = float(min(row.tile_m, m))
    traffic = (rows / row.sharers_a + float(row.tile_n) / row.sharers_b) * row.tile_k
    filled = (row.tile_m - rows) * row.tile_k
    step = max(multiply * per_sm, traffic * resident / 11890.0 + filled * per_sm / 50.0) + 10.8
    store = (525.3 + 0.01419 * (row.tile_m * row.tile_n)) * per_sm
    body = waves * steps * step + (store if row.overlaps else waves * store)
    memory = float(bytes_read(row, m, n, k, sm_count * per_sm // splits)) / 2154.0
    both = sqrt(sqrt(body * body * body * body + memory * memory * memory * memory))
    meeting = 52.7 + 402.4 * splits + 0.3515 * (row.tile_m * row.tile_n) if row.divides_k else 0.0
    estimate: float = (both + waves * meeting) * (row.cost_permille / 1000.0)
    return estimate


def ctas_of(row: Facts, m: int, n: int) -> int:
    """CTAs that a call would take if each computed one tile."""
    return tiles_of(row, m, n) * max(row.splits, 1)


def bytes_read(row: Facts, m: int, n: int, k: int, resident: int) -> int:
    """Bytes of A and B that come from memory, for rows of `k` bytes and `resident` CTAs at a time.

    Tiles are visited band by band. What lies across a band stays in L2 while it is swept; what lies along it is read again for
    every band, unless all of it stays in L2 as well.
    """
    of_m, of_n = row.tile_m * row.sharers_b, row.tile_n * row.sharers_a
    clusters_m, clusters_n = _ceil_div(m, of_m), _ceil_div(n, of_n)
    along_m = row.raster_order == 1 or (row.raster_order == 0 and clusters_n > clusters_m)
    along, along_bytes = (clusters_m, of_m * k) if along_m else (clusters_n, of_n * k)
    across, across_bytes = (clusters_n, of_n * k) if along_m else (clusters_m, of_m * k)
    clusters = max(1, resident // (row.sharers_a * row.sharers_b))
    width = min(across, max(row.swizzle, _ceil_div(clusters, along)))
    stays = along * along_bytes + width * across_bytes < L2_BYTES
    bands = 1 if stays else _ceil_div(across, width)
    return across * across_bytes + bands * along * along_bytes


def tiles_of(row: Facts, m: int, n: int) -> int:
    """Tiles that a variant computes, among them the empty ones by which CUTLASS's scheduler fills bands in both directions.

    Source: `get_log_swizzle_size` and `round_up` in cutlass/gemm/kernel/tile_scheduler_params.h.
    """
    tiles_m, tiles_n = _ceil_div(m, row.tile_m), _ceil_div(n, row.tile_n)
    if not row.pads:
        return tiles_m * tiles_n
    fewest = min(tiles_m, tiles_n)
    band = next((band for band, least in BANDS if row.swizzle >= band and fewest >= least), 1)
    return _round_up(tiles_m, band * row.sharers_b) * _round_up(tiles_n, band * row.sharers_a)


def pads_more(row: Row, then: Sequence[int], now: Sequence[int]) -> bool:
    """Whether empty tiles would add a quarter or more to what they were of the tiles when the row was measured."""
    facts, before, here = row.facts, (then[0], then[1]), (now[0], now[1])
    grown = tiles_of(facts, *here) * _full_tiles(facts, *before)
    return 4 * grown > 5 * tiles_of(facts, *before) * _full_tiles(facts, *here)


def _full_tiles(row: Facts, m: int, n: int) -> int:
    return _ceil_div(m, row.tile_m) * _ceil_div(n, row.tile_n)


def _round_up(a: int, multiple: int) -> int:
    return _ceil_div(a, multiple) * multiple


def _ceil_div(a: int, b: int) -> int:
    return (a + b - 1) // b
