"""Ratios by shape as a picture."""

from collections.abc import Sequence
from pathlib import Path

from harness.results import SUBJECT, shape_of


def draw(rows: Sequence[dict], names: Sequence[str], title: str, path: Path) -> bool:
    """Draw how much faster gemmill is than each peer (above 1), by op and shape. False where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    ops = sorted({row["op"] for row in rows})
    if not ops:
        return False
    widest = max(sum(row["op"] == op for row in rows) for op in ops)
    figure, axes = pyplot.subplots(len(ops), 1, figsize=(max(8.0, 0.3 * widest), 4.0 * len(ops)), squeeze=False)
    for op, axis in zip(ops, axes[:, 0], strict=True):
        members = sorted((row for row in rows if row["op"] == op), key=shape_of)
        for name in (name for name in names if name != SUBJECT):
            _draw_peer(axis, members, name)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_xticks(
            range(len(members)), [" x ".join(map(str, shape_of(r))) for r in members], rotation=75, fontsize=7
        )
        axis.set_ylabel("peer's time / gemmill's")
        axis.set_title(f"{op}: {title}", fontsize=9)
        axis.grid(axis="y", alpha=0.3)
        if axis.lines[1:]:
            axis.legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
    return True


def _draw_peer(axis: object, rows: Sequence[dict], name: str) -> None:
    points = [
        (i, row["contenders"][name]["median_us"] / row["contenders"][SUBJECT]["median_us"])
        for i, row in enumerate(rows)
        if name in row["contenders"] and SUBJECT in row["contenders"]
    ]
    if points:
        axis.plot(*zip(*points, strict=True), marker="o", markersize=3, linewidth=0.8, label=name)
