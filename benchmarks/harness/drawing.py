"""Shapes drawn at random, as a user's are who never tuned: log-uniform, of any number of rows, far from all that was measured."""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gemmill.families.scaled_mm.sweep import Op
from gemmill.families.scaled_mm.tuning import TUNING
from gemmill.locations import runtime_tables_dir
from gemmill.runtime.table_file import read_table
from gemmill.tuner.journal import read_journal
from gemmill.tuner.problems import Workload
from timed.scaled_mm import gemm

MOST_ROWS = 8192
LEAST_SIDE, MOST_SIDE = 512, 40_960
LEAST_BYTES, MOST_BYTES = 16_000_000, 600_000_000
"""Of the weights."""
STEP_N, STEP_K = 16, 16
GROUPS_STEP_N, GROUPS_STEP_K = 64, 128
"""Of scales in groups: vLLM gives DeepGEMM no other weights."""

LADDER = tuple(
    sorted({1, *(r for p in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096) for r in (p, p + 1, p * 3 // 2))})
)
"""Rows of one ladder: whole tiles, one row more, and half-way."""

Weights = tuple[Op, int, int]
"""(op, N, K)"""


def held_weights(journals: Iterable[Path], tables: Iterable[Path] = ()) -> set[Weights]:
    """Weights that a shipped table, a table given or a journal given has. Raises JournalError, TableError."""
    held: set[Weights] = set()
    for path in (*sorted(runtime_tables_dir().glob("*.json")), *tables):
        rows = read_table(path).rows
        held |= {(Op(row.op), row.sizes["n"], row.sizes["k"]) for row in rows if row.op in list(Op)}
    for path in journals:
        problems = [problem for problem, _, _ in read_journal(path).entries if problem.op in list(Op)]
        held |= {(Op(problem.op), problem.n, problem.k) for problem in problems}
    return held


def is_held(weights: Weights, held: Iterable[Weights]) -> bool:
    """Whether weights are as near to measured ones of the same operands as a table's row reaches."""
    op, n, k = weights
    return any(
        other.operand is op.operand
        and other.groups == op.groups
        and abs(math.log2(n / with_n)) + abs(math.log2(k / with_k)) <= TUNING.reach.distance
        for other, with_n, with_k in held
    )


def weights_of(op: Op, generator: random.Random, held: Sequence[Weights]) -> tuple[int, int]:
    """N and K, log-uniform among those that are not held."""
    step_n, step_k = (STEP_N, STEP_K) if op.groups is None else (GROUPS_STEP_N, GROUPS_STEP_K)
    element = op.operand.bits // 8
    while True:
        n, k = _side(generator, step_n), _side(generator, step_k)
        if LEAST_BYTES <= n * k * element <= MOST_BYTES and not is_held((op, n, k), held):
            return n, k


def rows_of(generator: random.Random, part: int = 0, parts: int = 1) -> int:
    """M, log-uniform over a part of all rows, any whole number."""
    return min(MOST_ROWS, int((MOST_ROWS + 1) ** ((part + generator.random()) / parts)))


def drawn(op: Op, count: int, seed: int, held: Sequence[Weights]) -> list[Workload]:
    """So many shapes of a class, each of weights of its own: the same of the same seed."""
    generator = random.Random(f"{seed} {op}")
    weights = [weights_of(op, generator, held) for _ in range(count)]
    return [gemm(op=op, m=rows_of(generator), n=n, k=k) for n, k in weights]


def ladders(op: Op, count: int, seed: int, held: Sequence[Weights]) -> list[list[Workload]]:
    """So many weights of a class, each at all rows of LADDER."""
    generator = random.Random(f"{seed} {op} ladder")
    weights = [weights_of(op, generator, held) for _ in range(count)]
    return [[gemm(op=op, m=m, n=n, k=k) for m in LADDER] for n, k in weights]


def designed(op: Op, seed: int, rows: int) -> Iterator[list[Workload]]:
    """Without end: weights, each at so many M, one in each equal part of the logarithm; every other is just above a whole
    tile, where a model goes wrong most easily."""
    generator = random.Random(f"{seed} {op} designed")
    while True:
        n, k = weights_of(op, generator, ())
        parts = [rows_of(generator, part, rows) for part in range(rows)]
        yield [gemm(op=op, m=_just_above(m, generator) if place % 2 else m, n=n, k=k) for place, m in enumerate(parts)]


def _just_above(m: int, generator: random.Random) -> int:
    tile = generator.choice([tile for tile in (8, 16, 32, 64, 128, 256) if tile <= max(m, 8)])
    return min(MOST_ROWS, m // tile * tile + generator.randint(1, max(1, tile // 8)))


def _side(generator: random.Random, step: int) -> int:
    size = LEAST_SIDE * (MOST_SIDE / LEAST_SIDE) ** generator.random()
    return max(LEAST_SIDE, round(size / step) * step)
