"""Which variant a call gets, and why not the others. Pure: the extension makes the same choice on the hot path."""

import math
from dataclasses import dataclass
from enum import Enum

from gemmill.manifest import KernelEntry
from gemmill.runtime.model import ctas_of, model_ns, tiles_of
from gemmill.runtime.problem import ProblemCall, describe_problem
from gemmill.runtime.table import Row, Table, TunedRow

DECODE_M, PREFILL_M, MANY_M, MOST_RATIO, MOST_DISTANCE = 16, 512, 4096, 2, 0.1
"""How far a measured choice reaches; kernels/extension/selection.cpp says why."""

MOST_CTAS = 2**30
"""Kernels count them in 32 bits, some past the last."""


class Trust(Enum):
    """What a choice rests on; values as in kernels/extension/selection.h."""

    PINNED = 0
    EXACT = 1
    NEAREST = 2
    MODEL = 3
    ONLY = 4
    """No other variant serves such calls: so it is with quantisation."""


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A variant that was not chosen and the first reason."""

    name: str
    reason: str
    us: float | None = None
    """What the model expects of one that fits."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The variant for a call, or None, and every other variant with the reason that ruled it out."""

    entry: KernelEntry | None
    trust: Trust
    trace: tuple[Rejected, ...]
    row: int = -1
    measured: tuple[int, int, int] | None = None
    """M, N and K of the row of a tuned table that it rests on."""

    def __str__(self) -> str:
        head = f"{self.entry.name} ({self.trust.name.lower()})" if self.entry else "no variant"
        return "\n".join([head, *(f"  not {r.name}: {r.reason}" for r in self.trace)])


def select(table: Table, call: ProblemCall, sm_count: int, pinned: str | None = None) -> Choice:
    """The choice for a call on a device of `sm_count` multiprocessors, where the variant `pinned` is pinned if named.

    The op launches nothing for an empty result, so no variant is chosen for one.
    """
    if call.m == 0 or call.n == 0:
        return Choice(
            entry=None, trust=Trust.MODEL, trace=_same_for_all(table, "the result is empty: nothing is launched")
        )
    if pinned is not None:
        return _select_pinned(table, call, pinned)
    index, trust, tuned = _choose(table, call, sm_count)
    chosen = table.entries[index] if index >= 0 else None
    measured = None if tuned is None else (tuned.m, tuned.n, tuned.k)
    trace = _trace(table, call, sm_count, chosen, trust)
    return Choice(entry=chosen, trust=trust, trace=trace, row=index, measured=measured)


def rejection(row: Row, call: ProblemCall) -> str | None:
    """The first reason why a row cannot take a call; None if it can."""
    if row.problem != call.problem:
        return f"it computes {describe_problem(row.problem)}, the call needs {describe_problem(call.problem)}"
    for name, needed, found in (
        ("a", row.align_a, call.align_a),
        ("b", row.align_b, call.align_b),
        ("out", row.align_d, call.align_d),
    ):
        if found < needed:
            return f"it needs rows of {name} at multiples of {needed} bytes, address and row stride are multiples of {found}"
    if call.k < row.min_k:
        return f"it needs K of {row.min_k} or more, K is {call.k}"
    if max(call.m, call.n, call.k) > row.max_mnk:
        return f"it takes M, N and K up to {row.max_mnk}, they are {call.m}, {call.n}, {call.k}"
    if (ctas := ctas_of(row, call)) > MOST_CTAS:
        return f"it would take {ctas} CTAs for M, N = {call.m}, {call.n}, and counts up to {MOST_CTAS}"
    return None


def _select_pinned(table: Table, call: ProblemCall, pinned: str) -> Choice:
    rows = table.rows_of(pinned)
    row = next((i for i in rows if table.rows[i].problem == call.problem), rows[0])
    others = tuple(rejected for rejected in _same_for_all(table, f"{pinned} is pinned") if rejected.name != pinned)
    reason = rejection(table.rows[row], call)
    if reason is None:
        return Choice(entry=table.entries[row], trust=Trust.PINNED, trace=others, row=row)
    return Choice(entry=None, trust=Trust.PINNED, trace=(Rejected(name=pinned, reason=reason), *others))


def _same_for_all(table: Table, reason: str) -> tuple[Rejected, ...]:
    return tuple(Rejected(name=name, reason=reason) for name in dict.fromkeys(entry.name for entry in table.entries))


def _choose(table: Table, call: ProblemCall, sm_count: int) -> tuple[int, Trust, TunedRow | None]:
    tuned, trust = _choose_tuned(table, call)
    if tuned is not None:
        return tuned.row, trust, tuned
    best, best_ns = -1, math.inf
    for i, row in enumerate(table.rows):
        if rejection(row, call) is None and (ns := model_ns(row, call, sm_count)) < best_ns:
            best, best_ns = i, ns
    return best, Trust.MODEL, None


def _choose_tuned(table: Table, call: ProblemCall) -> tuple[TunedRow | None, Trust]:
    best: TunedRow | None = None
    best_distance = math.inf
    for tuned in table.tuned:
        if tuned.problem != call.problem or not covers(tuned.m, call.m):
            continue
        if rejection(table.rows[tuned.row], call) is not None:
            continue
        distance = abs(math.log2(tuned.n / call.n)) + abs(math.log2(tuned.k / call.k)) if call.k else math.inf
        if distance > MOST_DISTANCE or pads_more(table.rows[tuned.row], tuned, call):
            continue
        same_place = best is not None and (tuned.n, tuned.k) == (best.n, best.k)
        if distance < best_distance or (same_place and best is not None and best.m < call.m):
            best, best_distance = tuned, distance
    if best is None:
        return None, Trust.MODEL
    exact = best.exact and best_distance == 0 and call.m <= best.m
    return best, Trust.EXACT if exact else Trust.NEAREST


def covers(measured_m: int, m: int) -> bool:
    """Whether what was measured for some rows says something about m: mirrors `covers` in kernels/extension/selection.cpp."""
    if m > measured_m:
        return measured_m >= MANY_M or (measured_m >= PREFILL_M and m <= MOST_RATIO * measured_m)
    return measured_m <= max(DECODE_M, MOST_RATIO * m)


def pads_more(row: Row, tuned: TunedRow, call: ProblemCall) -> bool:
    """Whether empty tiles would add a quarter or more to what they were of the tiles when the row was measured."""
    here, then = tiles_of(row, call.m, call.n), tiles_of(row, tuned.m, tuned.n)
    return 4 * here * _full_tiles(row, tuned.m, tuned.n) > 5 * then * _full_tiles(row, call.m, call.n)


def _full_tiles(row: Row, m: int, n: int) -> int:
    tiles: int = -(-m // row.tile_m) * -(-n // row.tile_n)
    return tiles


def _trace(
    table: Table, call: ProblemCall, sm_count: int, chosen: KernelEntry | None, trust: Trust
) -> tuple[Rejected, ...]:
    reasons: dict[str, Rejected] = {}
    for row, entry in zip(table.rows, table.entries, strict=True):
        if entry is chosen:
            continue
        reason = rejection(row, call)
        if reason is None:
            us = model_ns(row, call, sm_count) / 1000
            how = (
                "the model prefers another"
                if trust is Trust.MODEL
                else f"the table's {trust.name.lower()} row names another"
            )
            reasons[entry.name] = Rejected(name=entry.name, reason=f"it fits, {how} (model: {us:.1f} us)", us=us)
        elif entry.name not in reasons or row.problem == call.problem:
            reasons[entry.name] = Rejected(
                name=entry.name, reason=reason
            )  # of the row for this class of calls, where there is one
    return tuple(reasons.values())
