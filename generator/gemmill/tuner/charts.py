"""The places of the marks of a sweep's charts, in an SVG's units, and the squares of its maps.

The report's template draws them. The drawing is one small file, without script or network.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 340, 210
LEFT, RIGHT, TOP, BOTTOM = 46, 18, 10, 30
RATIOS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)
"""Marks of an axis of ratios, of which 1 is darker."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One series of a chart: points (x, y), both positive."""

    name: str
    kind: str
    """The CSS class that gives its colour."""
    points: Sequence[tuple[float, float]]
    told: Sequence[str] = ()
    """The text of each point's tooltip, in place of the values."""
    beside: float = 0.0
    """Units to the right of their places by which to plot points, so that lines of dots do not hide one another."""


def log_chart(
    title: str,
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    unit: str = "us",
    *,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    marks: Sequence[float] = (),
) -> dict[str, Any]:
    """Lines over two logarithmic axes, each point with its values, in `unit`, as a tooltip. `marks`: values of y that have a line,
    those in range; by default round ones."""
    xs, ys = zip(*(point for line in lines for point in line.points), strict=True)
    (x_range, y_range), (width, height) = (_range(xs), _range(ys)), size

    inset = max(abs(line.beside) for line in lines)

    def across(x: float) -> float:
        return round(LEFT + inset + _share(x, *x_range) * (width - LEFT - RIGHT - 2 * inset), 1)

    def down(y: float) -> float:
        return round(height - BOTTOM - _share(y, *y_range) * (height - TOP - BOTTOM), 1)

    def dots(line: Line) -> list[tuple[float, float, str]]:
        texts = line.told or [f"{line.name}: {y:.2f} {unit} at {x_label} = {x:g}" for x, y in line.points]
        places = ((round(across(x) + line.beside, 1), down(y)) for x, y in line.points)
        return [(*place, text) for place, text in zip(places, texts, strict=True)]

    grid = [mark for mark in marks if y_range[0] <= mark <= y_range[1]] or _ticks(*y_range)
    return {
        "title": title,
        "size": size,
        "labels": (x_label, y_label),
        "sides": (LEFT, width - RIGHT),
        "foot": height - BOTTOM + 13,
        "grid": [(down(value), _number(value), "even" if marks and value == 1 else "") for value in grid],
        "steps": [(across(value), _number(value)) for value in _thinned(sorted(set(xs)))],
        "lines": [(line.kind, dots(line)) for line in lines],
    }


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One square of a map."""

    kind: str
    """Its CSS class."""
    text: str
    title: str


def winner_map(rows: Sequence[str], columns: Sequence[int], cells: Mapping[tuple[str, int], Cell]) -> dict[str, Any]:
    """Rows of weights, columns of M, a square for each measured shape and None for any other."""
    return {
        "columns": list(columns),
        "rows": [(row, [cells.get((row, column)) for column in columns]) for row in rows],
    }


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low / 1.25, high * 1.25) if low == high else (low / 1.06, high * 1.06)


def _share(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low)


def _ticks(low: float, high: float) -> list[float]:
    """Round values: 1, 2 and 5 of each power of ten, powers alone where these are many, anything where they are few."""
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    steps = [step for power in powers for step in (power, 2 * power, 5 * power) if low <= step <= high]
    if len(steps) > 6:
        return [power for power in powers if low <= power <= high]
    if len(steps) >= 3:
        return steps
    return [float(f"{low * (high / low) ** (i / 3):.2g}") for i in range(1, 4)]


def _thinned(values: Sequence[float]) -> list[float]:
    """The last, and of the others those whose texts do not touch it or each other."""
    kept: list[float] = []
    low, high = values[0], values[-1]
    for value in reversed(values):
        if not kept or low == high or math.log(kept[-1] / value) / math.log(high / low) >= 1 / 7:
            kept.append(value)
    return kept


def _number(value: float) -> str:
    return f"{value:g}" if value < 100_000 else f"{value / 1000:g}k"
