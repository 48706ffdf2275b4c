"""Tune for your own shapes: measure variants, look at the table, and see which variant a call gets then.

    python examples/tune_my_shapes.py                                          # without a GPU: a dry run, whose times are invented
    python examples/tune_my_shapes.py --n 3072 --k 5120 --m 1,16,700 --home /tmp/tuned

On a GPU the measured table stands in the home folder, and processes with the same GEMMILL_HOME choose by it.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch


def gemmill(*words: str) -> None:
    """The command, which prints."""
    print("$ gemmill", *words, flush=True)
    subprocess.run([sys.executable, "-m", "gemmill", *words], check=True)


def main(arguments: list[str] | None = None) -> Path:
    """Returns the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=96)
    parser.add_argument("--k", type=int, default=256)
    parser.add_argument("--m", default="1,16")
    parser.add_argument("--op", default="fp8")
    parser.add_argument("--home", type=Path, help="folder of the shapes and the table")
    options = parser.parse_args(arguments)
    folder = options.home or Path(tempfile.mkdtemp(prefix="gemmill-tuned-"))
    folder.mkdir(parents=True, exist_ok=True)
    shapes, table = folder / "shapes.csv", folder / "table.json"
    rows = [f"{options.op},{m},{options.n},{options.k}" for m in options.m.split(",")]
    shapes.write_text("\n".join(["op,m,n,k", *rows]) + "\n")

    files = ["--shapes", str(shapes), "--table", str(table), "--journal", str(folder / "journal.jsonl")]
    gemmill("tune", *files, *([] if torch.cuda.is_available() else ["--dry-run"]))
    gemmill("table", "show", str(table))
    return table


if __name__ == "__main__":
    main()
