"""The analytic model that chooses where nothing was measured. Mirrors kernels/scaled_mm/model.cpp.

Waves of CTAs, each of which takes step after step along K (the tensor core multiplies while the next operands land), adds up
slices of K in shared memory if there are any, and stores its tile. The time of all waves and the time that memory needs for
the operands are joined by a smooth maximum.

The constants are fitted to the times of up to 40 variants at 628 shapes of all ops and of 512 variants at 52 of them (H200,
2026-11-20 and 21), for the loss of the variant that comes out first: docs/notes/tables.md has what it is, tools/fit_model.py fits
them anew. They are near what the machine has, but not measurements of it.
"""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any, NamedTuple

from gemmill.families.scaled_mm.classes import class_of
from gemmill.family import ProblemCall, Row

L2_KEPT = 40_000_000
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


class Constants(NamedTuple):
    """What is fitted. Bytes and multiply-adds are a nanosecond's, times nanoseconds."""

    products: float = 5000.0
    """Multiply-adds of a byte by a byte, of an SM."""
    shared_bytes: float = 200.6
    """That the tensor core reads from shared memory, of an SM."""
    promoting: float = 1.146
    """How much longer the tensor core takes where sums leave its accumulator."""
    promotion: float = 115.8
    """To add up one tile's sums, for each 128 bytes of K."""
    l2_bytes: float = 11890.0
    """From L2, of all SMs."""
    filled_bytes: float = 50.0
    """Zeros in the place of rows beyond A, of an SM (docs/notes/groups.md)."""
    step: float = 10.8
    """Of every step along K."""
    store: float = 525.3
    """To begin and end a tile."""
    store_element: float = 0.01419
    """To store one element of a tile."""
    memory_bytes: float = 2154.0
    """From memory, of all SMs."""
    meeting: float = 52.7
    """Of slices of K that are added up in the shared memory of a cluster."""
    meeting_slice: float = 402.4
    """For each of them."""
    meeting_element: float = 0.3515
    """For each element of a tile."""


class Terms(NamedTuple):
    """What a call by a variant comes to, before any constant: numbers, or arrays of them."""

    waves: Any
    steps: Any
    """Along K, of a CTA."""
    per_sm: Any
    """CTAs on an SM."""
    resident: Any
    """CTAs at a time."""
    splits: Any
    instructions: Any
    """Of the tensor core, in a step."""
    columns: Any
    tile_k: Any
    tile_elements: Any
    traffic: Any
    """Bytes that a CTA reads in a step."""
    filled: Any
    """Bytes of zeros in a step."""
    memory: Any
    """Bytes read from memory."""
    overlaps: Any
    promotes: Any
    divides_k: Any
    cost_permille: Any


class Arithmetic(NamedTuple):
    """Of numbers; of arrays where something else is given."""

    larger: Callable[[Any, Any], Any] = max
    root: Callable[[Any], Any] = sqrt
    pick: Callable[[Any, Any, Any], Any] = lambda condition, then, otherwise: then if condition else otherwise


FITTED = Constants()
OF_NUMBERS = Arithmetic()


def model_ns(of: Row, call: ProblemCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call by a variant, on a device of `sm_count` multiprocessors."""
    estimate: float = time_ns(terms_of(of, call, sm_count), FITTED)
    return estimate


def terms_of(of: Row, call: ProblemCall, sm_count: int) -> Terms:
    """What a call by a variant comes to."""
    row, (m, n, k) = of.facts, call.sizes
    splits = max(row.splits, 1)
    tiles = ctas_of(row, m, n)
    k *= class_of(call.problem).operand.bits // 8  # bytes, as tile_k
    per_sm = min(row.ctas_of_sm, _ceil_div(tiles, sm_count))
    rows = float(min(row.tile_m, m))
    return Terms(
        waves=float(_ceil_div(tiles, sm_count * per_sm)),
        steps=float(_ceil_div(_ceil_div(k, row.tile_k), splits)),
        per_sm=per_sm,
        resident=float(min(tiles, sm_count * per_sm)),
        splits=splits,
        instructions=float(row.tile_m * row.tile_n // row.columns) / 64.0 * (row.tile_k / 32.0),
        columns=float(row.columns),
        tile_k=row.tile_k,
        tile_elements=row.tile_m * row.tile_n,
        traffic=(rows / row.sharers_a + float(row.tile_n) / row.sharers_b) * row.tile_k,
        filled=(row.tile_m - rows) * row.tile_k,
        memory=float(bytes_read(row, m, n, k, sm_count * per_sm // splits)),
        overlaps=row.overlaps,
        promotes=row.promotes,
        divides_k=row.divides_k,
        cost_permille=row.cost_permille,
    )


def time_ns(t: Terms, c: Constants, do: Arithmetic = OF_NUMBERS) -> Any:
    """The model's nanoseconds."""
    multiply = t.instructions * do.larger(
        64.0 * t.columns * 32.0 / c.products, (2048.0 + 32.0 * t.columns) / c.shared_bytes
    )
    multiply = do.pick(t.promotes, c.promoting * multiply + c.promotion * (t.tile_k / 128.0), multiply)
    loaded = t.traffic * t.resident / c.l2_bytes + t.filled * t.per_sm / c.filled_bytes
    step = do.larger(multiply * t.per_sm, loaded) + c.step
    store = (c.store + c.store_element * t.tile_elements) * t.per_sm
    body = t.waves * t.steps * step + do.pick(t.overlaps, store, t.waves * store)
    memory = t.memory / c.memory_bytes
    both = do.root(do.root(body * body * body * body + memory * memory * memory * memory))
    slices = c.meeting + c.meeting_slice * t.splits + c.meeting_element * t.tile_elements
    return (both + t.waves * do.pick(t.divides_k, slices, 0.0)) * (t.cost_permille / 1000.0)


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
    stays = along * along_bytes + width * across_bytes < L2_KEPT
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
