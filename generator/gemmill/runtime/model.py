"""The analytic model that chooses where nothing was measured. Mirrors `model_ns` in kernels/extension/selection.cpp.

Waves of CTAs, each of which takes step after step along K: the tensor core multiplies while the next operands land. The
time of all waves and the time that memory needs for the operands are joined by a smooth maximum.

The constants are fitted to the times of 111 variants of e4m3 to bf16 at 52 shapes (H200, 2026-11-20,
benchmarks/results/scaled_mm-sweep-fp8-both-h200-2026-11-20.json), for the loss of the variant that comes out first: 1.049 of the
best in the mean, 1.21 at worst. They are near what the machine has, but not measurements of it: 4,735 multiply-adds and 128
bytes of shared memory a nanosecond and SM, 251 bytes landing in an SM, 15,460 from L2 and 3,010 from memory for all.
"""

from math import sqrt

from gemmill.runtime.problem import ProblemCall, class_of
from gemmill.runtime.table import Row

BANDS = ((8, 6), (4, 3), (2, 2))
"""Widths of bands that CUTLASS's scheduler uses, and from how many tiles of the shorter side on."""


def model_ns(row: Row, call: ProblemCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call by a variant, on a device of `sm_count` multiprocessors."""
    splits = max(row.splits, 1)
    tiles = tiles_of(row, call.m, call.n) * splits
    k = call.k * (class_of(call.problem).operand.bits // 8)  # bytes, as tile_k
    steps = float(_ceil_div(_ceil_div(k, row.tile_k), splits))
    per_sm = min(row.ctas_of_sm, _ceil_div(tiles, sm_count))
    resident = float(min(tiles, sm_count * per_sm))
    waves = float(_ceil_div(tiles, sm_count * per_sm))

    columns = float(row.columns)
    instructions = float(row.tile_m * row.tile_n // row.columns) / 64.0 * (row.tile_k / 32.0)
    multiply = instructions * max(64.0 * columns * 32.0 / 4735.0, (2048.0 + 32.0 * columns) / 127.8)
    rows = float(min(row.tile_m, call.m))
    landing = (rows + row.tile_n) * row.tile_k
    traffic = (rows / row.sharers_a + float(row.tile_n) / row.sharers_b) * row.tile_k
    load = max(traffic * resident / 15460.0, landing * per_sm / 251.0)
    step = max(multiply * per_sm, load) + (6.9 if row.overlaps else 23.0)
    body = waves * steps * step
    memory = (float(call.n) + call.m) * k / 3010.0
    both = sqrt(sqrt(body * body * body * body + memory * memory * memory * memory))
    reduction = 1126.0 + 320.5 * splits if row.splits > 1 else 0.0
    return (both + reduction) * (row.cost_permille / 1000.0)


def tiles_of(row: Row, m: int, n: int) -> int:
    """Tiles that a variant computes, among them the empty ones by which CUTLASS's scheduler fills bands in both directions.

    Source: `get_log_swizzle_size` and `round_up` in cutlass/gemm/kernel/tile_scheduler_params.h.
    """
    tiles_m, tiles_n = _ceil_div(m, row.tile_m), _ceil_div(n, row.tile_n)
    if not row.pads:
        return tiles_m * tiles_n
    fewest = min(tiles_m, tiles_n)
    band = next((band for band, least in BANDS if row.swizzle >= band and fewest >= least), 1)
    return _round_up(tiles_m, band * row.sharers_b) * _round_up(tiles_n, band * row.sharers_a)


def _round_up(a: int, multiple: int) -> int:
    return _ceil_div(a, multiple) * multiple


def _ceil_div(a: int, b: int) -> int:
    return (a + b - 1) // b
