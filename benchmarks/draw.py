"""Results drawn again: `python benchmarks/draw.py benchmarks/results/*.json --out-dir FOLDER` writes an SVG for each.

Takes comparisons that `run.py` wrote, and the two programs before it; a sweep has nothing to draw. Needs matplotlib.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import plot

SIZES = ("m", "n", "k", "hidden")
"""Of rows of schema version 1, which do not say what theirs are called."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw each file that has rows. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--out-dir", type=Path, default=Path())
    options = parser.parse_args(arguments)
    for path in options.results:
        record = json.loads(path.read_text(encoding="utf-8"))
        target = options.out_dir / f"{path.stem}.svg"
        if not record.get("rows") or "contenders" not in record["rows"][0]:
            print(f"{path} has no rows to draw")
        elif drawn(record, target):
            print(f"written: {target}")
        else:
            print("drawing needs matplotlib: pip install matplotlib", file=sys.stderr)
            return 1
    return 0


def drawn(record: dict, target: Path) -> bool:
    """Draw a record. False where matplotlib is missing."""
    rows = [row if "sizes" in row else of_version_1(row) for row in record["rows"]]
    title = f"{record['environment']['gpu']}, {record['date'][:10]}"
    names = list(dict.fromkeys(name for row in rows for name in row["contenders"]))
    return plot.draw(rows, names, title, target)


def of_version_1(row: dict) -> dict:
    """A row as it is written today."""
    return row | {"op": row.get("op", row.get("case")), "sizes": [name for name in SIZES if name in row]}


if __name__ == "__main__":
    sys.exit(main())
