"""Random shapes, like those of a user who never tuned: log-uniform, of any number of rows, far from all measured ones."""

import math
import random
import sys
from argparse import ArgumentParser
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gemmill.locations import runtime_tables_dir
from gemmill.registry import REGISTRY
from gemmill.runtime.table_file import read_table
from gemmill.tuner.journal import read_journal
from gemmill.tuner.workloads import Workload, workload_of
from timed import Drawing, benchmark_of, families

MOST_ROWS = 8192
LEAST_SIDE, MOST_SIDE = 512, 40_960
LEAST_BYTES, MOST_BYTES = 16_000_000, 600_000_000
"""Of the weights."""

LADDER = tuple(
    sorted({1, *(r for p in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096) for r in (p, p + 1, p * 3 // 2))})
)
"""Rows of one ladder: whole tiles, one row more, and half-way."""

Weights = tuple[str, int, int]
"""(op, N, K)"""


@cache
def drawings() -> dict[str, Drawing]:
    """The ranges of random weights, by family."""
    found = {name: benchmark_of(name).drawing for name in families()}
    return {name: drawing for name, drawing in found.items() if drawing is not None}


@cache
def classes_of(family: str) -> tuple[str, ...]:
    """All classes of calls of a family with random weights."""
    return tuple(op for op, (of, *_) in REGISTRY.measured.items() if of.name == family and family in drawings())


@cache
def _kin(op: str) -> Hashable:
    family = REGISTRY.measured[op][0].name
    return family, drawings()[family].kin(op)


def judged() -> list[str]:
    """Families whose choice is compared at random calls."""
    return [name for name in families() if name in drawings() or benchmark_of(name).judged]


def drawn_calls(family: str, kinds: str, count: int, seed: int, told: Sequence[str] = ()) -> list[Any]:
    """Random calls of a family without a `drawing`, as `run.py FAMILY --draw SEED` times them. Raises ValueError."""
    benchmark, parser = benchmark_of(family), ArgumentParser(prog=f"--calls of {family}")
    benchmark.add_options(parser)
    options = parser.parse_args(["--op", kinds, "--draw", str(seed), "--draws", str(count), *told])
    calls = benchmark.workloads(options)
    return [
        call for call in calls if call.kind in kinds.split(",")
    ] or calls  # a part of a name stands for all that have it


def held_weights(journals: Iterable[Path], tables: Iterable[Path] = ()) -> set[Weights]:
    """Weights that a shipped table, a table given or a journal given has. Raises JournalError, TableError."""
    held: set[Weights] = set()
    known = {op for family in drawings() for op in classes_of(family)}
    for path in (*sorted(runtime_tables_dir().glob("*.json")), *tables):
        rows = read_table(path).rows
        held |= {(row.op, row.sizes["n"], row.sizes["k"]) for row in rows if row.op in known}
    for path in journals:
        workloads = [workload for workload, _, _ in read_journal(path).entries if workload.op in known]
        held |= {(workload.op, workload.n, workload.k) for workload in workloads}
    return held


def is_held(weights: Weights, held: Iterable[Weights]) -> bool:
    """Whether weights are as near to measured ones of the same operands as a table's row reaches."""
    op, n, k = weights
    kin, reach = _kin(op), REGISTRY.measured[op][1].reach.distance
    return any(
        _kin(other) == kin and abs(math.log2(n / with_n)) + abs(math.log2(k / with_k)) <= reach
        for other, with_n, with_k in held
    )


def weights_of(op: str, generator: random.Random, held: Sequence[Weights]) -> tuple[int, int]:
    """N and K, log-uniform where no value is given."""
    drawing = drawings()[REGISTRY.measured[op][0].name]
    (step_n, step_k), code_bytes = drawing.steps(op), drawing.code_bytes(op)
    while True:
        n, k = _side(generator, step_n), _side(generator, step_k)
        if LEAST_BYTES <= n * k * code_bytes <= MOST_BYTES and not is_held((op, n, k), held):
            return n, k


def rows_of(generator: random.Random, part: int = 0, parts: int = 1) -> int:
    """M, log-uniform over a part of all rows, any whole number."""
    return min(MOST_ROWS, int((MOST_ROWS + 1) ** ((part + generator.random()) / parts)))


def drawn(op: str, count: int, seed: int, held: Sequence[Weights]) -> list[Workload]:
    """So many shapes of a class, each of weights of its own: the same of the same seed."""
    generator = random.Random(f"{seed} {op}")
    weights = [weights_of(op, generator, held) for _ in range(count)]
    return [_gemm(op, rows_of(generator), n, k) for n, k in weights]


def table_rows(op: str, count: int, seed: int) -> list[Workload]:
    """So many rows of a class of the shipped tables, at random; all where there are no more."""
    rows = [
        row for path in sorted(runtime_tables_dir().glob("*.json")) for row in read_table(path).rows if row.op == op
    ]
    found = sorted({workload_of(row.op, row.sizes) for row in rows})
    return random.Random(f"{seed} {op} rows").sample(found, min(count, len(found)))


def between_rows(op: str, count: int, seed: int) -> list[Workload]:
    """So many shapes of a class at weights of the shipped tables, with an M that no row has: log-uniform, above 16."""
    generator = random.Random(f"{seed} {op} between")
    rows = table_rows(op, sys.maxsize, seed)
    held, weights = set(rows), sorted({(row.n, row.k) for row in rows})
    found: list[Workload] = []
    while weights and len(found) < count:
        m = min(MOST_ROWS, int(17 * (MOST_ROWS / 17) ** generator.random()))
        workload = _gemm(op, m, *generator.choice(weights))
        found += [workload] if workload not in held else []
    return found


def ladders(op: str, count: int, seed: int, held: Sequence[Weights]) -> list[list[Workload]]:
    """So many weights of a class, each at all rows of LADDER."""
    generator = random.Random(f"{seed} {op} ladder")
    weights = [weights_of(op, generator, held) for _ in range(count)]
    return [[_gemm(op, m, n, k) for m in LADDER] for n, k in weights]


def designed(op: str, seed: int, rows: int, least_k: int = 0) -> Iterator[list[Workload]]:
    """Without end: weights, each at so many M, one in each equal part of the logarithm. Every other M is just above a whole
    tile, where a model goes wrong most easily. Weights of less than `least_k` columns are replaced."""
    generator = random.Random(f"{seed} {op} designed")
    while True:
        n, k = weights_of(op, generator, ())
        if k < least_k:
            continue
        parts = [rows_of(generator, part, rows) for part in range(rows)]
        yield [_gemm(op, _just_above(m, generator) if place % 2 else m, n, k) for place, m in enumerate(parts)]


def _gemm(op: str, m: int, n: int, k: int) -> Workload:
    return workload_of(op, {"m": m, "n": n, "k": k})


def _just_above(m: int, generator: random.Random) -> int:
    tile = generator.choice([tile for tile in (8, 16, 32, 64, 128, 256) if tile <= max(m, 8)])
    return min(MOST_ROWS, m // tile * tile + generator.randint(1, max(1, tile // 8)))


def _side(generator: random.Random, step: int) -> int:
    size = LEAST_SIDE * (MOST_SIDE / LEAST_SIDE) ** generator.random()
    return max(LEAST_SIDE, round(size / step) * step)
