#!/usr/bin/env python3
"""Times the start of the command: `--help` of every verb in a process of its own, the fastest of several runs.

    tools/cli_start.py            a table: verb, seconds until it ended, CPU seconds of it
    tools/cli_start.py --runs 20

Nothing asserts a time: tests/unit/test_cli_usage.py checks the imports of help.
"""

import argparse
import os
import subprocess
import sys
import time

import typer

from gemmill.cli.app import app


def verbs() -> list[list[str]]:
    """Every verb as its words, the command alone first."""
    found: list[list[str]] = [[]]
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        found += [[name, below] for below in getattr(command, "commands", ())] or [[name]]
    return found


def fastest(words: list[str], runs: int) -> tuple[float, float]:
    """Wall and CPU seconds of a process that prints help, each the least."""
    walls, cpus = [], []
    for _ in range(runs):
        before, began = os.times(), time.perf_counter()
        subprocess.run([sys.executable, "-m", "gemmill", *words, "--help"], stdout=subprocess.DEVNULL, check=True)
        walls.append(time.perf_counter() - began)
        after = os.times()
        cpus.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(walls), min(cpus)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    for words in verbs():
        wall, cpu = fastest(words, runs)
        print(f"{' '.join(words) or '(none)':16} {wall:.3f} {cpu:.3f}", flush=True)


if __name__ == "__main__":
    main()
