"""Fit the constants of a family's analytic model to times of the judge's shapes, and print the loss of the choice with them.

    python tools/fit_judged.py benchmarks/results/judge-grouped-*.json.xz             # the loss with today's constants
    python tools/fit_judged.py fit.jsonl --judged others.json --steps 3000            # and with constants fitted to the first
    python tools/fit_judged.py fit.jsonl --steps 800 --only _LOADED,_PRODUCTS
    python tools/fit_judged.py judge.json.xz tune.jsonl.xz --ops nvfp4,mxfp8 --judged others.json.xz --steps 5000

Takes results of `benchmarks/judge.py --family grouped_mm`, `sparse_mm` or `blockscaled`, JSON or JSONL, packed or not, in which all variants of a shape
were timed, and journals of `gemmill tune` for blockscaled. A table's numbers are constants each, of which only those move that the times depend on. The
loss of a shape is (time of the variant that the model puts first) / (time of the fastest), less one; careful times replace quick ones. The
search minimises the mean loss, where variants have chances by their modelled times, and the squared logarithmic error of times near the
fastest. It prints the constants for tuning.py and model.py (and its mirror in C++), and writes nothing.
"""

import argparse
import json
import lzma
import math
import random
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import gemmill.families.blockscaled.steps as blockscaled_steps
import gemmill.families.blockscaled.tuning as blockscaled_tuning
import gemmill.families.grouped_mm.model as grouped_model
import gemmill.families.grouped_mm.tuning as grouped_tuning
import gemmill.families.sparse_mm.model as sparse_model
import gemmill.families.sparse_mm.tuning as sparse_tuning
from gemmill.families.blockscaled.config import AnyConfig
from gemmill.family import Row, ShapedCall
from gemmill.space.names import parse_name

SM_COUNT = 132
SHARPNESS = 40.0
"""Of the chances: a variant that should take 3 % longer has a third of them."""
ERROR_SHARE, MOST_RATIO, NEAR = 0.3, 3.0, 2.0
"""The error's share in what is minimised; the largest ratio that counts; times up to so many times the fastest have an error."""
MANY = 20
"""From so many constants on a step moves one to three, else half of them."""
SPREAD = 0.2
"""Deviation of a step of the search at first, of the constants' logarithms."""
GROUPED = {
    "_PRODUCTS": grouped_tuning,
    "_LOADED": grouped_tuning,
    "_FIRST_PERMILLE": grouped_tuning,
    "_BASIC_END_NS": grouped_tuning,
    "_COOPERATIVE_END_NS": grouped_tuning,
    "_PINGPONG_END_NS": grouped_tuning,
    "_END_OF_PAIR_NS": grouped_tuning,
    "_PACKED_BLOCK_NS": grouped_tuning,
    "_PACKED_END_NS": grouped_tuning,
    "_ALONE_PERMILLE": grouped_tuning,
    "_BEGIN_NS": grouped_model,
    "_MEMORY": grouped_model,
}
SPARSE = {
    "_PRODUCTS": sparse_tuning,
    "_LOADED": sparse_tuning,
    "_BASIC_TILE_NS": sparse_tuning,
    "_TILE_NS": sparse_tuning,
    "_HIDING_TILE_NS": sparse_tuning,
    "_BEGIN_NS": sparse_model,
    "_MEMORY": sparse_model,
}
_STEPS = ("_OF_PIECES", "_OF_CODES_FEW", "_OF_FEW", "_OF_RING", "_OF_OTHER_RING", "_OF_WORDS", "_OF_AHEAD", "_OF_TMA")
BLOCKSCALED = dict.fromkeys((*_STEPS, "_LEFT_PERMILLE", "_LEFT_OF_PIECES"), blockscaled_steps)
MOST = {"_LEFT_PERMILLE": 1000, "_LEFT_OF_PIECES": 1000}
"""The largest value of a constant, where it has one."""
FAMILIES: Mapping[str, tuple[Mapping[str, ModuleType], Any]] = {
    "grouped_mm": (GROUPED, grouped_tuning.TUNING),
    "sparse_mm": (SPARSE, sparse_tuning.TUNING),
    "blockscaled": (BLOCKSCALED, blockscaled_tuning.TUNING),
}


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A shape, and the time of each variant."""

    family: str
    op: str
    text: str
    call: ShapedCall
    us: Mapping[str, float]


def read(paths: Iterable[Path]) -> list[Timed]:
    """The shapes of results. Raises ValueError where a file is another kind of result."""
    found = []
    for path in paths:
        data = path.read_bytes()
        text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode()
        told = [json.loads(line) for line in text.splitlines()] if ".jsonl" in path.name else [json.loads(text)]
        family, kind = told[0].get("family"), told[0].get("kind")
        if kind == "sweep" and ".jsonl" in path.name:
            found += [_tuned(path, row) for row in told if row["kind"] == "outcome"]
            continue
        if kind != "judge" or family not in FAMILIES:
            raise ValueError(
                f"{path} is of kind {kind}, family {family}, expected a judge's of {' or '.join(FAMILIES)}"
            )
        rows = told[1:] if ".jsonl" in path.name else told[0]["rows"]
        found += [_timed(family, row) for row in rows if row["kind"] == "shape" and len(row["sieved_us"]) > 1]
    return found


def _timed(family: str, row: Mapping[str, Any]) -> Timed:
    sizes = tuple(row[name] for name in row.get("sizes", "mnk"))
    call = ShapedCall(family=family, call_class=0, sizes=sizes, alignments=(16,) * 4)
    told = {
        row["choice"] if name == "gemmill" else name: times["median_us"] for name, times in row["contenders"].items()
    }
    careful = {name: us for name, us in told.items() if name in row["sieved_us"]}
    return Timed(family=family, op=row["op"], text=row["key"], call=call, us=row["sieved_us"] | careful)


def _tuned(path: Path, row: Mapping[str, Any]) -> Timed:
    problem = row["problem"]
    rounds = {_now(name): times for of_build in row["rounds_us"].values() for name, times in of_build.items()}
    if strangers := [name for name in rounds if not isinstance(_parsed(name), AnyConfig)]:
        raise ValueError(f"{path} is a journal with {strangers[0]}, expected variants of blockscaled")
    sizes = tuple(problem[name] for name in "mnk")
    return Timed(
        family="blockscaled",
        op=problem["op"],
        text="{op} {m} x {n} x {k}".format(**problem),
        call=ShapedCall(family="blockscaled", call_class=0, sizes=sizes, alignments=(16,) * 4),
        us={name: statistics.median(times) for name, times in rounds.items()},
    )


def _now(name: str) -> str:
    """The name of a variant that a journal knows by a former one."""
    return re.sub(r"_tmafew(_.*)_s(\d)", r"_widenedfew\1_tma\2", name)


_parsed = cache(parse_name)


def modelled(timed: Iterable[Timed]) -> list[dict[str, float]]:
    """Nanoseconds of each variant of each shape, with the modules' constants."""
    rows: dict[str, Row] = {}
    found = []
    for t in timed:
        tuning = FAMILIES[t.family][1]
        for name in t.us:
            if name not in rows:
                rows[name] = next(iter(tuning.rows(_parsed(name), 0)))
        found.append({name: tuning.model_ns(rows[name], t.call, SM_COUNT) for name in t.us})
    return found


def losses(timed: Sequence[Timed]) -> list[float]:
    """Of each shape."""
    firsts = [min(ns, key=lambda name: (ns[name], name)) for ns in modelled(timed)]
    return [t.us[first] / min(t.us.values()) - 1 for t, first in zip(timed, firsts, strict=True)]


def objective(timed: Sequence[Timed]) -> float:
    """The smooth loss, and a share of the times' error."""
    lost, errors = [], []
    for t, ns in zip(timed, modelled(timed), strict=True):
        guesses = {name: math.log(guess / 1e3) for name, guess in ns.items()}
        least, best = min(guesses.values()), min(t.us.values())
        chances = {name: math.exp(-SHARPNESS * (guess - least)) for name, guess in guesses.items()}
        ratios = {name: min(us / best, MOST_RATIO) for name, us in t.us.items()}
        lost.append(sum(p * ratios[name] for name, p in chances.items()) / sum(chances.values()) - 1)
        errors += [(guesses[name] - math.log(us)) ** 2 for name, us in t.us.items() if us <= NEAR * best]
    return statistics.fmean(lost) + ERROR_SHARE * statistics.fmean(errors)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A number among a module's constants."""

    module: ModuleType
    name: str
    key: Any = None
    """of a table"""
    index: int | None = None
    """in a table's entry"""

    @property
    def value(self) -> Any:
        """The number."""
        found = getattr(self.module, self.name)
        entry = found if self.key is None else found[self.key]
        return entry if self.index is None else entry[self.index]

    def set(self, value: Any) -> None:
        """Put another number there."""
        table = getattr(self.module, self.name)
        if self.key is None:
            setattr(self.module, self.name, value)
            return
        if self.index is not None:
            entry = table[self.key]
            value = (*entry[: self.index], value, *entry[self.index + 1 :])
        table[self.key] = value

    def scaled(self, factor: float) -> Any:
        """The number times a factor, of the same type and in its bounds."""
        return type(self.value)(min(max(round(self.value * factor), 1), MOST.get(self.name, math.inf)))


def places(timed: Sequence[Timed], constants: Mapping[str, ModuleType]) -> list[Place]:
    """The constants' numbers on which times depend."""
    found = []
    for name, module in sorted(constants.items()):
        value = getattr(module, name)
        if not isinstance(value, dict):
            found.append(Place(module=module, name=name))
            continue
        for key, entry in value.items():
            indices = range(len(entry)) if isinstance(entry, tuple) else (None,)
            found += [Place(module=module, name=name, key=key, index=index) for index in indices]
    return [place for place in found if _matters(place, timed)]


def _matters(place: Place, timed: Sequence[Timed]) -> bool:
    today, before = place.value, modelled(timed)
    changed = []
    for factor in (0.5, 2.0):
        place.set(place.scaled(factor))
        changed.append(modelled(timed) != before)
        place.set(today)
    return any(changed)


def fit(timed: Sequence[Timed], constants: Mapping[str, ModuleType], steps: int, seed: int) -> None:
    """Set the modules' constants by a random walk that keeps what is better, with ever smaller steps."""
    generator, least = random.Random(seed), objective(timed)
    numbers = places(timed, constants)
    for step in range(steps):
        spread = SPREAD * 0.05 ** (step / steps)
        moved = generator.sample(numbers, max(1, len(numbers) // 2) if len(numbers) < MANY else generator.randint(1, 3))
        before = [place.value for place in moved]
        for place in moved:
            place.set(place.scaled(math.exp(generator.gauss(0.0, spread))))
        if (found := objective(timed)) < least:
            least = found
            continue
        for place, value in zip(moved, before, strict=True):
            place.set(value)


def loss_lines(title: str, timed: Sequence[Timed], shown: int = 4) -> Iterator[str]:
    """The mean and the worst of each kind of calls, and the worst calls."""
    lost = losses(timed)
    for op in sorted({t.op for t in timed}):
        of_op = [loss for loss, t in zip(lost, timed, strict=True) if t.op == op]
        yield f"{title}, {op}: {statistics.fmean(of_op):.2%} in the mean, {max(of_op):.1%} at worst of {len(of_op)} calls"
    for loss, t in sorted(zip(lost, timed, strict=True), key=lambda pair: -pair[0])[:shown]:
        if loss:
            yield f"  +{loss:.1%} at {t.text}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, help="fitted to")
    parser.add_argument("--judged", nargs="*", type=Path, default=[], help="results of other seeds")
    parser.add_argument("--steps", type=int, default=0, help="of the search; 0: nothing is fitted")
    parser.add_argument("--seed", type=int, default=0, help="of the search")
    parser.add_argument("--ops", help="kinds of calls, with commas; all by default")
    parser.add_argument("--only", help="constants to fit, with commas; all by default")
    options = parser.parse_args(arguments)
    try:
        to_fit, to_judge = read(options.results), read(options.judged)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if options.ops:
        to_fit, to_judge = ([t for t in timed if t.op in options.ops.split(",")] for timed in (to_fit, to_judge))
    if not to_fit or len(families := {t.family for t in (*to_fit, *to_judge)}) != 1:
        parser.error(f"the results have {len(to_fit)} shapes to fit to, expected some, all of one family")
    constants = FAMILIES[families.pop()][0]
    only = options.only.split(",") if options.only else [*constants]
    if unknown := [name for name in only if name not in constants]:
        parser.error(f"--only {unknown[0]!r} is none of {', '.join(constants)}")
    for title in ("today", "fitted") if options.steps else ("today",):
        if title == "fitted":
            fit(to_fit, {name: constants[name] for name in only}, options.steps, options.seed)
        for part, timed in (("fitted to", to_fit), ("judged", to_judge)):
            print(*loss_lines(f"{title}, {part}", timed), sep="\n")
    if options.steps:
        print(*(f"{name} = {getattr(constants[name], name)}" for name in only), sep="\n")


if __name__ == "__main__":
    main()
