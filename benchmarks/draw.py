"""Charts of results: `python benchmarks/draw.py benchmarks/results/*.json --out-dir FOLDER` writes an SVG for each comparison.

    python benchmarks/draw.py benchmarks/results/RESULT.json --out docs/images/peers.svg

The second makes the picture of the README, of the result that docs/figures.md names. Takes comparisons that `run.py` wrote, and
the two programs before it; a sweep has nothing to draw.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gemmill.writing import write_whole
from harness import plot
from harness.stored import read_result


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw each file with rows. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--out-dir", type=Path, default=Path(), help="where an SVG of each result's name is written")
    parser.add_argument("--out", type=Path, help="the SVG of one result")
    options = parser.parse_args(arguments)
    for path in options.results:
        target = options.out or options.out_dir / f"{path.name.partition('.')[0]}.svg"
        text = plot.drawn(read_result(path))
        if text is None:
            print(f"{path} compares nothing with a peer")
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_whole(target, text)
            print(f"written: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
