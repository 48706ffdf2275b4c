"""Charts of a sweep as SVG text: made here, so that a report is one small file that needs no script and no network."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

WIDTH, HEIGHT = 340, 210
LEFT, RIGHT, TOP, BOTTOM = 46, 18, 10, 30
CELL_WIDTH, CELL_HEIGHT, ROW_LABEL = 58, 24, 150


@dataclass(frozen=True, kw_only=True)
class Line:
    """One series of a chart: points (x, y), both positive."""

    name: str
    kind: str
    """Its CSS class, which gives its colour."""
    points: Sequence[tuple[float, float]]


def log_chart(lines: Sequence[Line], x_label: str, y_label: str) -> str:
    """Lines over two logarithmic axes, each point with its values as a tooltip."""
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    x_range = _range([x for x, _ in points])
    y_range = _range([y for _, y in points])

    def place(x: float, y: float) -> tuple[float, float]:
        across = _share(x, *x_range) * (WIDTH - LEFT - RIGHT)
        up = _share(y, *y_range) * (HEIGHT - TOP - BOTTOM)
        return round(LEFT + across, 1), round(HEIGHT - BOTTOM - up, 1)

    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label={quoteattr(f"{y_label} against {x_label}")}>'
    ]
    for value in _ticks(*y_range):
        _, y = place(x_range[0], value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 4}" y="{y + 3}" text-anchor="end">{_number(value)}</text>')
    for value in _thinned(sorted({x for x, _ in points})):
        x, _ = place(value, y_range[0])
        parts.append(
            f'<text class="tick" x="{x}" y="{HEIGHT - BOTTOM + 13}" text-anchor="middle">{_number(value)}</text>'
        )
    parts.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">{escape(x_label)}</text>')
    parts.append(f'<text class="tick" x="2" y="9">{escape(y_label)}</text>')
    for line in lines:
        placed = [place(x, y) for x, y in line.points]
        path = " ".join(f"{'M' if i == 0 else 'L'}{x} {y}" for i, (x, y) in enumerate(placed))
        parts.append(f'<path class="line {line.kind}" d="{path}"/>')
        for (x, y), (at_x, at_y) in zip(line.points, placed, strict=True):
            text = escape(f"{line.name}: {y:.2f} us at M = {x:g}")
            parts.append(
                f'<circle class="dot {line.kind}" cx="{at_x}" cy="{at_y}" r="2.5"><title>{text}</title></circle>'
            )
    return "".join(parts) + "</svg>"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One square of a map."""

    kind: str
    """Its CSS class."""
    text: str
    title: str


def winner_map(rows: Sequence[str], columns: Sequence[int], cells: Mapping[tuple[str, int], Cell]) -> str:
    """Rows of weights, columns of M, a square for each shape that was measured."""
    width = ROW_LABEL + CELL_WIDTH * len(columns) + 4
    height = CELL_HEIGHT * (len(rows) + 1) + 4
    parts = [
        f'<svg class="map" viewBox="0 0 {width} {height}" style="max-width:{width}px" role="img" aria-label="which variant wins where">'
    ]
    for j, m in enumerate(columns):
        x = ROW_LABEL + CELL_WIDTH * j + CELL_WIDTH / 2
        parts.append(f'<text class="tick" x="{x}" y="16" text-anchor="middle">M {m}</text>')
    for i, row in enumerate(rows):
        y = CELL_HEIGHT * (i + 1)
        parts.append(f'<text class="tick" x="{ROW_LABEL - 6}" y="{y + 16}" text-anchor="end">{escape(row)}</text>')
        for j, m in enumerate(columns):
            cell = cells.get((row, m))
            if cell is None:
                continue
            x = ROW_LABEL + CELL_WIDTH * j
            parts.append(
                f'<g><rect class="cell {cell.kind}" x="{x + 1}" y="{y + 1}" width="{CELL_WIDTH - 2}" height="{CELL_HEIGHT - 2}" rx="3"/>'
                f'<text class="celltext" x="{x + CELL_WIDTH / 2}" y="{y + 16}" text-anchor="middle">{escape(cell.text)}</text>'
                f"<title>{escape(cell.title)}</title></g>"
            )
    return "".join(parts) + "</svg>"


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
