"""The analytic model that chooses where nothing was measured. Mirrors `model_ns` in kernels/extension/selection.cpp."""

from gemmill.runtime.problem import ProblemCall
from gemmill.runtime.table import Row


def model_ns(row: Row, call: ProblemCall, sm_count: int) -> float:
    """Estimated nanoseconds: waves of CTAs, each reading its operands and multiplying them."""
    splits = max(row.splits, 1)
    tiles = _ceil_div(call.m, row.tile_m) * _ceil_div(call.n, row.tile_n)
    steps = _ceil_div(_ceil_div(call.k, row.tile_k), splits)
    resident = float(min(tiles * splits, sm_count))
    bytes_per_ns = min(60.0, 4200.0 / resident)
    read = float(min(row.tile_m, call.m) + row.tile_n) * row.tile_k / bytes_per_ns
    multiply = float(row.tile_m) * row.tile_n * row.tile_k / 5600.0
    waves = float(_ceil_div(tiles * splits, sm_count))
    reduction = 1500.0 if splits > 1 else 0.0
    return (waves * (steps * max(read, multiply) + 500.0) + 1500.0 + reduction) * (row.cost_permille / 1000.0)


def _ceil_div(a: int, b: int) -> int:
    return (a + b - 1) // b
