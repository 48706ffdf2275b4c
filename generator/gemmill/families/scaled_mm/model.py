"""The analytic model that chooses among variants without measurements. Mirrors kernels/scaled_mm/model.cpp.

Clusters of CTAs run in waves, as many at a time as a device has room for. Five things limit them. The first two are the
tensor core with its stores, and how soon a stage of the pipeline fills again. The others are L2, the fetches of SMs
from memory, and memory. The fourth root of the sum of their fourth powers joins their times: a smooth maximum. The time
to add up slices of K comes after that.

The constants are fitted to the times of 515 variants at 2,642 shapes, three quarters of the measured weights (H200,
2026-11-21). The fit is for the loss of the variant that comes out first (docs/notes/tables.md). tools/fit_model.py
repeats it. They are near the machine's rates, but not measurements of it: a smooth maximum of equals exceeds each of
them.

Boosted trees correct the estimate (boosted.py).
"""

from collections.abc import Callable, Sequence
from math import exp, sqrt
from typing import Any, NamedTuple

from gemmill.families.scaled_mm.boosted import LEAST_LOG, log_of
from gemmill.families.scaled_mm.classes import class_of
from gemmill.family import Row, ShapedCall

L2_KEPT = 40_000_000
"""Bytes of operands that L2 can keep."""

ROOM = ((5, 120), (4, 124), (3, 117))
"""For clusters of so many CTAs and more, how many of 132 SMs they find room in (H200).

A cluster lies within a group of 14 to 18 SMs.
"""

BANDS = ((8, 6), (4, 3), (2, 2))
"""Widths of the bands of CUTLASS's scheduler, and from how many tiles of the shorter side on it uses each."""


IN_MEMORY, IN_CLUSTER, IN_REGISTERS = 0, 1, 2
"""Where slices of K are added up: in memory, in the shared memory of a cluster, or by the one CTA that has them all."""


class RowFacts(NamedTuple):
    """The inputs of the model for a variant. Mirrors `GemmFacts` in kernels/scaled_mm/model.h."""

    raster_order: int
    swizzle: int
    splits: int
    tile_m: int
    """The tile along M of the op, in elements. `tile_n` is along N."""
    tile_n: int
    tile_k: int
    """The tile along K, in bytes."""
    columns: int
    """Columns of the tile, as the tensor core sees it: tile_n, or tile_m of a transposed kernel."""
    sharers_a: int
    """CTAs of a cluster that load a tile of A together."""
    sharers_b: int
    pads: int
    """1 where it rounds the tiles of a call up to whole bands, as CUTLASS's scheduler does."""
    ctas_of_sm: int
    """CTAs that fit on an SM."""
    overlaps: int
    """1 where the kernel stores a tile while it multiplies the next."""
    promotes: int
    """How often sums leave the tensor core's accumulator in 128 bytes of K; 0 where they stay to the end of K."""
    meets: int
    """Where slices of K are added up, if there are several."""
    stages: int
    """Stages of the pipeline: steps whose operands are on their way at a time."""
    box_rows: int
    """Rows of a TMA box, where A comes box by box because it leaves a box or more of a tile empty.

    It is 0 where TMA fills such a tile up with zeros.
    """
    partials: int
    """Sets of partial sums, each of one promotion; 1 where sums are not promoted."""
    by_turns: int
    """1 where sets take turns: one is promoted while others are multiplied. Else all are multiplied, then promoted."""
    cost_permille: int
    """How long its schedule takes, in thousandths of the model's time."""


class Constants(NamedTuple):
    """The fitted constants. Rates are bytes or multiply-adds in a nanosecond; times are nanoseconds."""

    products: float = 6232.0
    """Multiply-adds of a byte by a byte, of an SM."""
    shared_bytes: float = 241.7
    """Bytes that the tensor core reads from shared memory and loads write there, of an SM."""
    promoting: float = 1.091
    """The factor by which the tensor core takes longer where sums leave its accumulator."""
    promotion: float = 0.8044
    """The time to add up one tile's sums, for each 128 bytes of K."""
    scale_column: float = 0.75
    """The time to read the scale of one column, and to multiply by it, at each promotion of a transposed tile with 128 rows of weights.
    This constant and the next are fitted to groups of 128 alone (docs/notes/tables.md)."""
    wide_column: float = 2.0
    """The time that each column beyond 128 adds to that. Two sets of sums of 160 take 160 of the 232 registers."""
    promoted_latency: float = 86.01
    """The time from when a WGMMA of a group of 32 is issued until its sums can be promoted. This constant and the next two are
    fitted to journals of groups of 32 alone (docs/notes/tables.md)."""
    promoted_unit: float = 14.46
    """The time of a group of warps to issue a WGMMA and promote its sums, besides that of each column."""
    promoted_column: float = 0.7334
    """The part of that time for each column of the tile."""
    l2_bytes: float = 11470.0
    """Bytes from L2, of all SMs."""
    straddling: float = 1.136
    """The factor by which more of L2 is read where rows are no multiples of 128 bytes.

    A step's part of such a row lies in two lines.
    """
    parting: float = 0.6285
    """The share to add where rows are no multiples of 32 bytes: half of them begin within a sector."""
    filling: float = 3.178
    """Bytes from L2 that one byte of zeros, in the place of rows beyond A, counts as (docs/notes/tiles.md)."""
    fetched_bytes: float = 58.77
    """Bytes from memory, of an SM."""
    memory_bytes: float = 6868.0
    """Bytes from memory, of all SMs."""
    latency: float = 1433.0
    """The time from when a stage is free until its next operands are there."""
    begin: float = 1291.0
    """The time to launch."""
    store_element: float = 0.06785
    """The time to store one element of a tile."""
    stored_late: float = 0.04915
    """The share of that time that holds up the next tile of a schedule that overlaps both."""
    meeting: float = 2107.0
    """The time to add up slices of K in the shared memory of a cluster."""
    meeting_element: float = 0.1512
    """The part of that time for each element of a tile."""
    joining: float = 2400.0
    """The time for CTAs of a tile to wait for one another, where slices of K meet in memory."""
    joining_element: float = 0.12
    """The part of that time for each element of a tile, which is stored and read there."""
    restarting_element: float = 0.015
    """The time to add one slice to those before it, for each element of a tile. It is predicted, not fitted: 128 x 192 of them
    take 0.12 us of additions and 0.25 us until the tensor core is busy again."""


class Terms(NamedTuple):
    """The terms of a call by a variant, before any constant: numbers, or arrays of them."""

    waves: Any
    slices: Any
    """CTAs that divide a tile's K among them."""
    steps: Any
    """Steps along K, of all waves."""
    ctas: Any
    """Steps of all CTAs."""
    per_sm: Any
    """CTAs on an SM."""
    traffic: Any
    """Bytes that a CTA reads in a step."""
    filled: Any
    """Bytes of zeros in a step."""
    straddles: Any
    parts: Any
    """Whether rows are no multiples of 128 bytes, and of 32 bytes."""
    memory: Any
    """Bytes read from memory."""
    fetchers: Any
    """SMs that read these bytes."""
    occupancy: Any
    """CTAs over those that all waves would have room for on all SMs."""
    used: Any
    """The share of a tile's rows that A has."""
    variant: RowFacts


class Times(NamedTuple):
    """The parts of a call's time, in nanoseconds: numbers, or arrays of them."""

    multiplied: Any
    stored: Any
    pipeline: Any
    l2: Any
    fetched: Any
    memory: Any
    total: Any
    """The model's estimate, of all parts."""


class Arithmetic(NamedTuple):
    """The operations that the model computes with: of numbers, or of arrays."""

    larger: Callable[[Any, Any], Any] = max
    root: Callable[[Any], Any] = sqrt
    pick: Callable[[Any, Any, Any], Any] = lambda condition, then, otherwise: then if condition else otherwise


FITTED = Constants()
OF_NUMBERS = Arithmetic()


def model_ns(of: Row, call: ShapedCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call by a variant, on a device of `sm_count` multiprocessors."""
    terms = terms_of(of, call, sm_count)
    times = times_of(terms, FITTED)
    estimate: float = times.total
    return estimate * exp(log_of(properties_of(terms, times))) if is_corrected(of.facts) else estimate


def least_ns(of: Row, call: ShapedCall, sm_count: int) -> float:
    """A number that `model_ns` is not below, found without the trees."""
    estimate: float = times_of(terms_of(of, call, sm_count), FITTED).total
    return estimate * exp(LEAST_LOG)


def is_corrected(row: RowFacts) -> bool:
    """Whether trees correct the estimate: those of groups of 32 have too few measured times."""
    return row.promotes <= 2


def properties_of(t: Terms, times: Times) -> tuple[Any, ...]:
    """The inputs of the trees, in the order of `boosted.PROPERTIES`."""
    v = t.variant
    shares = [time / times.total for time in times[:-1]]
    of_call = (times.total, t.occupancy, t.waves, t.fetchers, t.per_sm)
    tile = (v.tile_m, v.tile_n, v.tile_k, v.stages, t.slices, v.overlaps, v.columns, v.sharers_a, v.sharers_b)
    return (*shares, *of_call, *tile, t.filled, t.used)


def terms_of(of: Row, call: ShapedCall, sm_count: int) -> Terms:
    """The terms of a call by a variant."""
    row, (m, n, k) = of.facts, call.sizes
    splits = ctas_of_tile(row)
    tiles = ctas_of(row, m, n)
    k *= class_of(call.call_class).operand.bits // 8  # bytes, as tile_k
    room = _room(row, sm_count)
    per_sm = min(row.ctas_of_sm, _ceil_div(tiles, room))
    waves = _ceil_div(tiles, room * per_sm)
    steps = _ceil_div(_ceil_div(k, row.tile_k), splits)
    rows = float(min(row.tile_m, m))
    boxed = row.box_rows > 0 and m <= row.tile_m - row.box_rows
    loaded = float(_round_up(m, row.box_rows) if boxed else row.tile_m)
    return Terms(
        waves=float(waves),
        slices=splits,
        steps=float(waves * steps),
        ctas=float(tiles * steps),
        per_sm=per_sm,
        traffic=(rows / row.sharers_a + float(row.tile_n) / row.sharers_b) * row.tile_k,
        filled=(loaded - rows) * row.tile_k,
        straddles=k % 128 != 0,
        parts=k % 32 != 0,
        memory=float(bytes_read(row, m, n, k, sm_count * per_sm // splits)),
        fetchers=float(min(_ceil_div(tiles, per_sm), sm_count)),
        occupancy=float(tiles) / float(waves * sm_count * per_sm),
        used=rows / row.tile_m,
        variant=row,
    )


def time_ns(t: Terms, c: Constants, do: Arithmetic = OF_NUMBERS) -> Any:
    """The model's nanoseconds of a call's terms, without the trees' correction."""
    return times_of(t, c, do).total


def times_of(t: Terms, c: Constants, do: Arithmetic = OF_NUMBERS) -> Times:
    """The parts of a call's time, and their whole without the trees' correction."""
    v = t.variant
    tile_elements = v.tile_m * v.tile_n
    # In a step: the tensor core's instructions, and the bytes that loads write to shared memory.
    instructions = tile_elements // v.columns / 64.0 * (v.tile_k / 32.0)
    written = (v.tile_m + v.tile_n) * v.tile_k
    multiply = do.larger(
        instructions * (64.0 * v.columns * 32.0) / c.products,
        (instructions * (2048.0 + 32.0 * v.columns) + written) / c.shared_bytes,
    )
    is_fine = v.promotes > 2
    # A transposed tile has a scale for each column. Boxes tell it from a square tile that is not transposed.
    is_scaled = (v.box_rows > 0) & (v.promotes > 0) & (v.promotes <= 2)
    scales = c.scale_column * v.columns + c.wide_column * do.larger(v.columns - 128, 0)
    promotion = c.promotion + do.pick(is_scaled, scales * v.promotes * (tile_elements // v.columns / 128.0), 0.0)
    multiply = do.pick(v.promotes > 0, c.promoting * multiply + promotion * (v.tile_k / 128.0), multiply)
    # In groups of 32 the warps that issue a WGMMA promote its sums, and wait for them unless other sets are multiplied.
    slabs, promotions = tile_elements // v.columns, v.promotes * (v.tile_k / 128.0)
    issue = c.promoted_unit + c.promoted_column * v.columns
    by_turns = do.larger(issue, (c.promoted_latency + issue) / v.partials)
    unit = do.pick(v.by_turns, by_turns, c.promoted_latency / v.partials + issue)
    waited = do.pick(is_fine, do.larger(slabs // 128, 1) * promotions * unit, 0.0)
    issued = do.pick(is_fine, slabs // 64 * promotions * issue, 0.0)
    step = do.larger(do.larger(multiply, issued) * t.per_sm, waited)
    store = c.store_element * tile_elements * t.per_sm
    multiplied = t.steps * step
    stored = store * do.pick(v.overlaps, 1.0 + (t.waves - 1.0) * c.stored_late, t.waves)
    body = multiplied + stored
    pipeline = t.steps * c.latency / v.stages
    crossing = do.pick(t.straddles, c.straddling, 1.0) + do.pick(t.parts, c.parting, 0.0)
    l2 = t.ctas * (t.traffic * crossing + c.filling * t.filled) / c.l2_bytes
    fetched = t.memory / (t.fetchers * c.fetched_bytes)
    memory = t.memory / c.memory_bytes
    joined = do.root(do.root(_fourth(body) + _fourth(pipeline) + _fourth(l2) + _fourth(fetched) + _fourth(memory)))
    met = do.pick(v.meets == IN_CLUSTER, c.meeting + c.meeting_element * tile_elements, 0.0)
    restarted = do.pick(v.meets == IN_REGISTERS, v.splits * c.restarting_element * tile_elements, 0.0)
    in_memory = (v.splits > 1) & (v.meets == IN_MEMORY)
    waited_for = do.pick(in_memory, c.joining + c.joining_element * tile_elements, 0.0)
    # In a later wave CTAs of a tile begin at different times, and wait the longer for one another.
    slices = t.waves * met + t.waves * restarted + t.waves * t.waves * waited_for
    total = (c.begin + joined + slices) * (v.cost_permille / 1000.0)
    return Times(multiplied, stored, pipeline, l2, fetched, memory, total)


def _fourth(x: Any) -> Any:
    return (x * x) * (x * x)


def _room(row: RowFacts, sm_count: int) -> int:
    """SMs in which clusters of a variant find room."""
    cluster = row.sharers_a * row.sharers_b * (row.splits if row.meets == IN_CLUSTER else 1)
    return max(1, sm_count * next((room for least, room in ROOM if cluster >= least), 132) // 132)


def ctas_of(row: RowFacts, m: int, n: int) -> int:
    """CTAs that a call would take if each computed one tile."""
    return tiles_of(row, m, n) * ctas_of_tile(row)


def ctas_of_tile(row: RowFacts) -> int:
    """CTAs that divide a tile's K among them."""
    return 1 if row.meets == IN_REGISTERS else max(row.splits, 1)


def bytes_read(row: RowFacts, m: int, n: int, k: int, resident: int) -> int:
    """Bytes of A and B that come from memory, for rows of `k` bytes and `resident` CTAs at a time.

    The tile scheduler visits tiles band by band. Operands across a band stay in L2 during its sweep. Every band reads
    the operands along it again, unless all of them stay in L2 as well.
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


def tiles_of(row: RowFacts, m: int, n: int) -> int:
    """Tiles that a variant computes, empty ones too.

    Clusters that lie partly beyond the result have empty tiles. So have the bands that CUTLASS's scheduler fills in
    both directions.

    Source: `get_log_swizzle_size` and `round_up` in cutlass/gemm/kernel/tile_scheduler_params.h.
    """
    tiles_m = _round_up(_ceil_div(m, row.tile_m), row.sharers_b)
    tiles_n = _round_up(_ceil_div(n, row.tile_n), row.sharers_a)
    if not row.pads:
        return tiles_m * tiles_n
    fewest = min(tiles_m, tiles_n)
    band = next((band for band, least in BANDS if row.swizzle >= band and fewest >= least), 1)
    return _round_up(tiles_m, band * row.sharers_b) * _round_up(tiles_n, band * row.sharers_a)


def pads_more(row: Row, then: Sequence[int], now: Sequence[int]) -> bool:
    """Whether the tiles to each full tile, empty ones included, have grown by more than a quarter since the row was
    measured."""
    facts, before, here = row.facts, (then[0], then[1]), (now[0], now[1])
    grown = tiles_of(facts, *here) * _full_tiles(facts, *before)
    return 4 * grown > 5 * tiles_of(facts, *before) * _full_tiles(facts, *here)


def _full_tiles(row: RowFacts, m: int, n: int) -> int:
    return _ceil_div(m, row.tile_m) * _ceil_div(n, row.tile_n)


def _round_up(a: int, multiple: int) -> int:
    return _ceil_div(a, multiple) * multiple


def _ceil_div(a: int, b: int) -> int:
    return (a + b - 1) // b
