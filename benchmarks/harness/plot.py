"""A comparison as a picture: how much longer the best peer takes, a dot for each shape, over the size that its tables step by.

Drawn with the charts of `gemmill tune`'s report: plain SVG, and the same results give the same bytes.
"""

from collections.abc import Sequence
from typing import Any

from gemmill.tuner.charts import RATIOS, Line, log_chart
from gemmill.tuner.report import environment
from harness.results import SUBJECT, shape_of

_SIZES = ("m", "n", "k", "hidden")
"""Of rows of schema version 1, which do not say what theirs are called."""
TOGETHER = 6
"""Ops that share a chart, told by colour; more have a chart each."""
WIDE, SMALL = (760, 270), (376, 210)
HEAD, BETWEEN = 56, 24
"""Above the charts: what they show, and the legend. Above each of several: its op."""
LABELS = {
    "fp8": "FP8, per token and channel",
    "fp8_groups": "FP8, groups of 128",
    "int8": "INT8",
    "int8_azp": "INT8, zero points",
    "bf16": "bf16",
}
"""Of ops whose names are short."""


def drawn(record: dict) -> str | None:
    """The SVG of a comparison's record. None where no row has a peer that computes the same."""
    rows = [row if "sizes" in row else _of_version_1(row) for row in record.get("rows") or ()]
    compared = [row for row in rows if row.get("ratio") is not None and "contenders" in row]
    ops = [op for op in LABELS if any(row["op"] == op for row in compared)]
    ops += sorted({row["op"] for row in compared} - set(ops))
    if not ops:
        return None
    together = len(ops) <= TOGETHER
    groups = [ops] if together else [[op] for op in ops]
    across, size = (1, WIDE) if together else (2, SMALL)
    charts = [
        (
            size[0] * (i % across),
            HEAD + BETWEEN * (not together) + (size[1] + BETWEEN) * (i // across),
            _chart(compared, group, size),
        )
        for i, group in enumerate(groups)
    ]
    named = [LABELS.get(op, op) for op in ops] if together else []
    legend = [
        (14 + sum(round(len(name) * 6.6 + 34) for name in named[:i]), name, f"k{i + 1}") for i, name in enumerate(named)
    ]
    told = f"{record['environment']['gpu']}, {record['date'][:10]}, commit {record['commit'][:7]}"
    title = f"Time of the best peer / time of {SUBJECT}; each dot is a shape. {told}"
    return (
        environment()
        .get_template("report/ratios.svg.jinja")
        .render(title=title, head=title, size=(WIDE[0], charts[-1][1] + size[1]), legend=legend, charts=charts)
    )


def _of_version_1(row: dict) -> dict:
    """A row as it is written today."""
    return row | {"op": row.get("op", row.get("case")), "sizes": [name for name in _SIZES if name in row]}


def _chart(rows: Sequence[dict], ops: Sequence[str], size: tuple[int, int]) -> dict[str, Any]:
    lines = []
    for i, op in enumerate(ops):
        found = sorted((row for row in rows if row["op"] == op), key=shape_of)
        lines.append(
            Line(
                name=op,
                kind=f"k{i + 1}",
                points=[(max(1, shape_of(row)[0]), row["ratio"]) for row in found],
                told=[_told(row) for row in found],
                beside=8 * (i - len(ops) // 2),
            )
        )
    first = next(row["sizes"][0] for row in rows if row["op"] in ops)
    return log_chart(", ".join(ops), lines, first.upper(), "", size=size, marks=RATIOS)


def _told(row: dict) -> str:
    """What is seen where one points at a dot."""
    name, shape = LABELS.get(row["op"], row["op"]), " x ".join(map(str, shape_of(row)))
    return f"{name}: {shape}, {row['ratio']:.2f} of {row.get('best_peer', 'the peer')}"
