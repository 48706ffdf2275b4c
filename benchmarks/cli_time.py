"""Time from a shell's call of the `gemmill` command until it ends, where it looks at nothing: help and version.

    python benchmarks/cli_time.py
    python benchmarks/cli_time.py --rounds 2 --out-dir /tmp/dry

Each call is a process. Calls take turns with an interpreter that does nothing, whose time a call contains.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from gemmill.tuner.device import now
from harness import devices
from harness.written import write_json

RESULTS = Path(__file__).resolve().parent / "results"
CALLS = {
    "python": ["-c", "pass"],
    "--version": ["-m", "gemmill", "--version"],
    "--help": ["-m", "gemmill", "--help"],
    "doctor --help": ["-m", "gemmill", "doctor", "--help"],
    "list --help": ["-m", "gemmill", "list", "--help"],
    "explain --help": ["-m", "gemmill", "explain", "--help"],
}


def seconds(arguments: Sequence[str]) -> float:
    """Of one process. Raises CalledProcessError where it fails."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="kept; one more comes first")
    parser.add_argument("--commit", help="of sources in no checkout")
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--name", default="cli-time", help="file name of the results, without suffix")
    options = parser.parse_args(arguments)
    rounds: dict[str, list[float]] = {call: [] for call in CALLS}
    for turn in range(options.rounds + 1):
        for call, words in CALLS.items():
            taken = seconds(words)
            if turn:
                rounds[call].append(round(taken, 4))
    for call, taken in rounds.items():
        print(f"{call}: median {median(taken):.3f} s, least {min(taken):.3f} s")
    record = {
        "schema_version": 1,
        "date": now(),
        "environment": devices.environment(),
        "commit": options.commit or devices.commit_of(Path(__file__).resolve().parents[1] / "generator"),
        "median_s": {call: round(median(taken), 4) for call, taken in rounds.items()},
        "rounds_s": rounds,
    }
    write_json(record, options.out_dir / f"{options.name}.json")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
