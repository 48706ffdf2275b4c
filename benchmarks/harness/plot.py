"""A comparison as pictures, a dot for each shape: how much longer the best peer takes, and the share of the roofline.

Dots lie over the size that tables step by.

Drawn with the charts of `gemmill tune`'s report: plain SVG, and the same results give the same bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gemmill.registry import REGISTRY
from gemmill.tuner.charts import RATIOS, Line, log_chart
from gemmill.tuner.report import CEILINGS, environment
from harness.results import SUBJECT, shape_of

_SIZES = ("m", "n", "k", "hidden")
"""Of rows of schema version 1, which do not name theirs."""
TOGETHER = 6
"""Ops that share a chart, told by colour; more have a chart each."""
WIDE, SMALL = (760, 270), (376, 210)
HEAD, BETWEEN = 56, 24
"""Above the charts: their title, and the legend. Above each of several: its op."""
LABELS = {
    "fp8": "FP8, per token and channel",
    "fp8_groups": "FP8, groups of 128",
    "fp8_groups_32": "FP8, groups of 32",
    "int8": "INT8",
    "int8_azp": "INT8, zero points",
    "bf16": "bf16",
}
"""Of ops whose names are short."""


def drawn(record: dict) -> str | None:
    """The SVG of a comparison's ratios. None where no row has a peer that computes the same."""
    rows = [row for row in _rows(record) if row.get("ratio") is not None and "contenders" in row]
    return _picture(
        record,
        f"Time of the best peer / time of {SUBJECT}",
        [(row, row["ratio"], f"of {row.get('best_peer', 'the peer')}") for row in rows],
    )


def rooflines(record: dict) -> str | None:
    """The SVG of a comparison's shares of the roofline. None for a device whose ceilings are not known."""
    ceilings = CEILINGS.get(record["environment"]["gpu"])
    if ceilings is None:
        return None
    rows = [row for row in _rows(record) if row.get("gbps") and row["op"] in REGISTRY.measured]
    return _picture(
        record,
        f"Least time by the roofline / time of {SUBJECT}",
        [(row, _share(row, ceilings), "of the roofline") for row in rows],
    )


def _share(row: dict, ceilings: tuple[float, Mapping[int, float]]) -> float:
    """The larger of the shares of the memory's bandwidth and of the tensor cores' rate."""
    bandwidth, rates = ceilings
    bits = max(REGISTRY.measured[row["op"]][3].operand_bits, min(rates))
    return max(row["gbps"] * 1e9 / bandwidth, (row["tflops"] or 0) * 1e12 / rates[bits])


def _rows(record: dict) -> list[dict]:
    return [row if "sizes" in row else _of_version_1(row) for row in record.get("rows") or ()]


Dot = tuple[dict, float, str]
"""A row, its plotted value, and the whole of which that is a share."""


def _picture(record: dict, what: str, compared: Sequence[Dot]) -> str | None:
    ops = [op for op in LABELS if any(row["op"] == op for row, _, _ in compared)]
    ops += sorted({row["op"] for row, _, _ in compared} - set(ops))
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
    title = f"{what}; each dot is a shape. {told}"
    return (
        environment()
        .get_template("report/ratios.svg.jinja")
        .render(title=title, head=title, size=(WIDE[0], charts[-1][1] + size[1]), legend=legend, charts=charts)
    )


def _of_version_1(row: dict) -> dict:
    """A row as it is written today."""
    return row | {"op": row.get("op", row.get("case")), "sizes": [name for name in _SIZES if name in row]}


def _chart(dots: Sequence[Dot], ops: Sequence[str], size: tuple[int, int]) -> dict[str, Any]:
    lines = []
    for i, op in enumerate(ops):
        found = sorted((dot for dot in dots if dot[0]["op"] == op), key=lambda dot: shape_of(dot[0]))
        lines.append(
            Line(
                name=op,
                kind=f"k{i + 1}",
                points=[(max(1, shape_of(row)[0]), value) for row, value, _ in found],
                told=[_told(*dot) for dot in found],
                beside=8 * (i - len(ops) // 2),
            )
        )
    first = next(row["sizes"][0] for row, _, _ in dots if row["op"] in ops)
    return log_chart(", ".join(ops), lines, first.upper(), "", size=size, marks=RATIOS)


def _told(row: dict, value: float, of: str) -> str:
    """The tooltip of a dot."""
    name, shape = LABELS.get(row["op"], row["op"]), " x ".join(map(str, shape_of(row)))
    return f"{name}: {shape}, {value:.2f} {of}"
