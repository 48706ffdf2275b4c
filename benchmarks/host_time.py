"""Host time of a call, several revisions of gemmill in turn in one run.

    python benchmarks/host_time.py before=OLD/generator,OLD/.gemmill now=generator,.gemmill again=generator,.gemmill
    python benchmarks/host_time.py now=generator,.gemmill --cpu --rounds 3 --calls 20 --out-dir /tmp/dry
    python benchmarks/host_time.py before=OLD/generator now=generator --plugins --name host-time-plugins

A side is NAME=SOURCES,HOME: the folder that holds the package gemmill, and the home whose current build it loads. With --plugins the
Python of engines' plugins is timed around ops that are stubs, on any machine, and no home is needed. Each side
has a process of its own. Sides take turns, in another order each round, so that whatever slows the machine slows all of
them. The difference to the first side is the median over the rounds. Naming a side twice shows the noise.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from gemmill.tuner.device import now
from gemmill.tuner.timing import shuffled
from harness import devices
from harness.written import write_json

BENCHMARKS = Path(__file__).resolve().parent
RESULTS = BENCHMARKS / "results"
SERVERS = {False: "harness.host_calls", True: "harness.plugin_calls"}
"""The program that answers, by whether plugins are timed."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a side's gemmill lies."""

    name: str
    sources: Path
    home: Path | None
    """None where no build is needed."""


class Side:
    """A process that times calls of one revision."""

    def __init__(self, place: Place, device: str, calls: int, server: str) -> None:
        self.name = place.name
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(place.sources), str(BENCHMARKS)])}
        if place.home is not None:
            environment["GEMMILL_HOME"] = str(place.home)
        command = [sys.executable, "-P", "-m", server, device, str(calls)]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ops = list(iter(self._line, ""))

    def us(self, op: str) -> float:
        """Microseconds a call."""
        assert self._process.stdin is not None
        print(op, file=self._process.stdin, flush=True)
        return float(self._line())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: its process ended with {self._process.wait()}; what it said stands above")
        return line.rstrip("\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    options = parse(arguments)
    device, server = "cpu" if options.cpu or options.plugins else "cuda", SERVERS[options.plugins]
    sides = [Side(place, device, options.calls, server) for place in options.sides]
    ops = [op for op in sides[0].ops if all(op in side.ops for side in sides)]
    rounds: dict[str, dict[str, list[float]]] = {op: {side.name: [] for side in sides} for op in ops}
    by_name = {side.name: side for side in sides}
    for turn in range(options.rounds + 1):
        for op in ops:
            for name in shuffled(list(by_name), turn):
                us = by_name[name].us(op)
                if turn:
                    rounds[op][name].append(us)
    for side in sides:
        side.close()
    record = {
        "schema_version": 1,
        "date": now(),
        "environment": devices.environment(),
        "calls": options.calls,
        "on_cpu": device == "cpu",
        "plugins": options.plugins,
        "commits": {place.name: devices.commit_of(place.sources) for place in options.sides}
        | dict(options.commit or ()),
        "ops": {op: figures(taken, options.sides[0].name) for op, taken in rounds.items()},
    }
    for op, found in record["ops"].items():
        print(
            f"{op}: "
            + ", ".join(f"{name} {side['median_us']:.2f} ({side['more_us']:+.2f})" for name, side in found.items())
        )
    write_json(record, options.out_dir / f"{options.name}.json")
    return 0


def figures(taken: dict[str, list[float]], first: str) -> dict[str, dict[str, object]]:
    """Of each side the median time, and the median and quartiles of the difference to the first side in the same round."""
    found: dict[str, dict[str, object]] = {}
    for name, rounds in taken.items():
        more = [us - before for us, before in zip(rounds, taken[first], strict=True)]
        low, _, high = quantiles(more, n=4, method="inclusive") if len(more) > 1 else (more[0],) * 3
        found[name] = {
            "median_us": round(median(rounds), 3),
            "more_us": round(median(more), 3),
            "more_quartiles_us": [round(low, 3), round(high, 3)],
            "rounds_us": [round(us, 3) for us in rounds],
        }
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sides", nargs="+", type=place_of, metavar="NAME=SOURCES,HOME")
    parser.add_argument("--rounds", type=int, default=31, help="kept; one more comes first")
    parser.add_argument("--calls", type=int, default=1000, help="in a round")
    parser.add_argument("--cpu", action="store_true", help="call the references: for trying the program")
    parser.add_argument("--plugins", action="store_true", help="time the Python of engines' plugins around stubs")
    parser.add_argument(
        "--commit", action="append", type=named, metavar="NAME=COMMIT", help="of sources in no checkout"
    )
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--name", default="host-time", help="file name of the results, without suffix")
    options = parser.parse_args(arguments)
    names = [place.name for place in options.sides]
    if len(set(names)) < len(names):
        parser.error(f"sides are called {', '.join(names)}: each needs a name of its own")
    if not options.plugins and (homeless := [place.name for place in options.sides if place.home is None]):
        parser.error(
            f"{', '.join(homeless)}: a side is NAME=SOURCES,HOME, and HOME may be left out with --plugins alone"
        )
    return options


def named(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, found, value = text.partition("=")
    if not (name and found and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def place_of(text: str) -> Place:
    """NAME=SOURCES,HOME or NAME=SOURCES; folders must be there."""
    name, folders = named(text)
    sources, comma, home = folders.partition(",")
    for folder, holds in ((sources, "gemmill/__init__.py"), *([(home, "builds")] if comma else [])):
        if not (folder and (Path(folder) / holds).exists()):
            raise argparse.ArgumentTypeError(f"{text!r}: {folder or 'the home'!r} has no {holds}")
    return Place(name=name, sources=Path(sources).resolve(), home=Path(home).resolve() if comma else None)


if __name__ == "__main__":
    sys.exit(main())
