"""Boosted trees that correct the analytic model's times. Mirrors kernels/scaled_mm/boosted.cpp.

Each tree asks the same questions of every variant, one after another, and the answers number a leaf. The sum of the leaves is
the natural logarithm of (measured time / model's time), held within LEAST_LOG and its opposite.

tools/fit_trees.py fits them to measured times and writes boosted.json and kernels/scaled_mm/boosted_trees.h. docs/notes/tables.md has
the loss of the choice with and without them. The times are of an H200; on other GPUs the correction is an extrapolation, as the
model's constants are.
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("boosted.json")
LEAF = 1e-4
"""The unit of leaves."""
LEAST_LOG = -0.25
"""The logarithm of the largest reduction; the largest increase is its opposite."""
PROPERTIES = (
    "multiplied",
    "stored",
    "pipeline",
    "l2",
    "fetched",
    "memory",
    "total",
    "occupancy",
    "waves",
    "fetchers",
    "per_sm",
    "tile_m",
    "tile_n",
    "tile_k",
    "stages",
    "slices",
    "overlaps",
    "columns",
    "sharers_a",
    "sharers_b",
    "filled",
    "used",
)
"""The first six are the shares of the model's time that `Times` names; others are fields of `Times`, `Terms` and `RowFacts`."""


class Tree(NamedTuple):
    """A tree whose questions are the same on each path."""

    questions: tuple[tuple[int, float], ...]
    """A place in PROPERTIES and a threshold; the answer is whether the property exceeds it."""
    leaves: tuple[int, ...]
    """In LEAF, by the number that the answers make as binary digits, the first answer first."""


@cache
def trees() -> tuple[Tree, ...]:
    """The fitted trees."""
    found = json.loads(FILE.read_text(encoding="utf-8"))
    return tuple(
        Tree(tuple((int(place), float(threshold)) for place, threshold in questions), tuple(map(int, leaves)))
        for questions, leaves in found
    )


def log_of(properties: Sequence[float]) -> float:
    """The natural logarithm of the correction."""
    total = 0
    for questions, leaves in trees():
        leaf = 0
        for place, threshold in questions:
            leaf = 2 * leaf + (properties[place] > threshold)
        total += leaves[leaf]
    return min(max(total * LEAF, LEAST_LOG), -LEAST_LOG)
