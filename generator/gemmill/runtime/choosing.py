"""The variant for a call: by the nearest measured row, else by the model.

It is pure: the extension makes the same choice on the hot path.
"""

import math
from enum import Enum

from gemmill.family import Row, ShapedCall
from gemmill.registry import REGISTRY
from gemmill.runtime.variant_table import TunedRow, VariantTable


class Trust(Enum):
    """The evidence for a choice. Values are those of kernels/extension/selection.h."""

    PINNED = 0
    EXACT = 1
    NEAREST = 2
    MODEL = 3
    ONLY = 4
    """No other variant serves such calls."""


def model_ns(row: Row, call: ShapedCall, sm_count: int) -> float:
    """Estimated nanoseconds of a call by a variant, on a device of `sm_count` multiprocessors."""
    return REGISTRY.choices[call.family].model_ns(row, call, sm_count)


def rejection(row: Row, call: ShapedCall) -> str | None:
    """The first reason why a row cannot take a call; None if it can."""
    tuning = REGISTRY.choices[call.family]
    if row.call_class != call.call_class:
        return tuning.differs(row.call_class, call.call_class)
    for name, needed, found in zip(tuning.aligned, row.alignments, call.alignments, strict=True):
        if found < needed:
            return f"it needs {name} aligned to {needed} bytes, its address or row stride is aligned to {found}"
    names = [name.upper() for name in tuning.sizes]
    for name, least, size in zip(names, row.least, call.sizes, strict=True):
        if size < least:
            return f"it needs {name} of {least} or more, {name} is {size}"
    if max(call.sizes, default=0) > row.most:
        all_names = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        return f"it takes {all_names} up to {row.most}, they are {', '.join(map(str, call.sizes))}"
    return tuning.refuses(row, call)


def choose(table: VariantTable, call: ShapedCall, sm_count: int) -> tuple[int, Trust, TunedRow | None]:
    """The row for a call without a pinned variant, or -1; the evidence for the choice; the measured row, if there is
    one.
    """
    tuning = REGISTRY.choices[call.family]
    tuned, trust = _choose_tuned(table, call) if tuning.is_measured else (None, Trust.ONLY)
    if tuned is not None and _is_of(tuned, call):
        return tuned.row, trust, tuned
    best, best_ns = _by_model(table, call, sm_count)
    if tuned is not None and best_ns * tuning.reach.margin >= model_ns(table.rows[tuned.row], call, sm_count):
        return tuned.row, trust, tuned
    return best, Trust.MODEL if tuning.is_measured else Trust.ONLY, None


def _is_of(tuned: TunedRow, call: ShapedCall) -> bool:
    """Whether a measured row serves a call whatever the model says: one of its own sizes, or of so few that none matter."""
    tuning = REGISTRY.choices[call.family]
    size = call.sizes[tuning.sizes.index(tuning.bucketed)]
    return math.isinf(tuning.reach.margin) or size <= tuning.reach.few or tuned.sizes == call.sizes


def _by_model(table: VariantTable, call: ShapedCall, sm_count: int) -> tuple[int, float]:
    """The row of which the model expects least, or -1, and those nanoseconds."""
    tuning = REGISTRY.choices[call.family]
    best, best_ns = -1, math.inf
    for i, row, _ in table.of(call.family):
        if row.is_withheld or row.call_class != call.call_class:  # before a sentence is made of it
            continue
        if rejection(row, call) is not None or tuning.least_ns(row, call, sm_count) >= best_ns:
            continue
        if (ns := model_ns(row, call, sm_count)) < best_ns:
            best, best_ns = i, ns
    return best, best_ns


def _choose_tuned(table: VariantTable, call: ShapedCall) -> tuple[TunedRow | None, Trust]:
    tuning = REGISTRY.choices[call.family]
    bucketed, near = tuning.sizes.index(tuning.bucketed), tuple(map(tuning.sizes.index, tuning.near))
    best: TunedRow | None = None
    best_distance = math.inf
    for tuned in table.tuned:
        if tuned.call_class != call.call_class or table.entries[tuned.row].family != call.family:
            continue
        row, now = table.rows[tuned.row], call.sizes[bucketed]
        if not tuning.reach.covers(tuned.sizes[bucketed], now) or rejection(row, call) is not None:
            continue
        distance = sum(_octaves(tuned.sizes[i], call.sizes[i]) for i in near)
        if distance > tuning.reach.distance or tuning.wastes(row, tuned.sizes, call.sizes):
            continue
        same_place = best is not None and all(tuned.sizes[i] == best.sizes[i] for i in near)
        if distance < best_distance or (same_place and best is not None and best.sizes[bucketed] < now):
            best, best_distance = tuned, distance
    if best is None:
        return None, Trust.MODEL
    exact = best.exact and best_distance == 0 and call.sizes[bucketed] <= best.sizes[bucketed]
    return best, Trust.EXACT if exact else Trust.NEAREST


def _octaves(measured: int, size: int) -> float:
    return abs(math.log2(measured / size)) if size else math.inf
