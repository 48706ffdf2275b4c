"""Fit the constants of one tile of packed experts to measured times, and print the loss of the choice with them.

    python tools/fit_experts.py fit.json --judged others.json                              # the loss today
    python tools/fit_experts.py fit.json --judged others.json --tile t8o --steps 4000      # and with the tile's constants fitted
    python tools/fit_experts.py fit.json --steps 800 --by-layer                            # each layer judged by a fit to the others

Takes results of `benchmarks/run.py fused_experts --variants --draw SEED`, packed by xz or not; seeds of both lists differ. The loss of a call is (time of the
variant that the model puts first) / (time of the fastest timed), less one. Constants of the other tiles are held. The search minimises
the mean loss, where variants have chances by their modelled times, and the squared logarithmic error of the tile's times. It prints
the constants that the tile has for main_loop.py, and writes nothing.
"""

import argparse
import json
import lzma
import math
import random
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gemmill.families.fused_experts import NAME
from gemmill.families.fused_experts.model import model_ns
from gemmill.families.fused_experts.tuning import TUNING
from gemmill.family import Row, ShapedCall
from gemmill.space.names import parse_name

SM_COUNT = 132
SIZES = 6
"""Of a call in a sweep: kind, tokens, experts, experts of a token, columns, results."""
CONSTANTS = ("begin_ns", "tile_ps", "code_ps", "alone_ps", "few_ps", "many_ps")
SHARPNESS = 40.0
"""Of the chances: a variant that should take 3 % longer has a third of them."""
ERROR_SHARE, MOST_RATIO, NEAR = 0.3, 3.0, 2.0
"""The error's share in what is minimised; the largest ratio that counts; times up to so many times the fastest have an error."""
SPREAD = 0.15
"""Deviation of a step of the search, of the constants' logarithms."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A call, and the time of each variant."""

    text: str
    call: ShapedCall
    us: Mapping[str, float]


def read(paths: Iterable[Path]) -> list[Timed]:
    """The calls of sweeps. Raises ValueError where a file is another kind of result."""
    found = []
    for path in paths:
        told = json.loads(lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes())
        if told.get("kind") != "sweep" or any(len(shape) != SIZES for shape in told["shapes"]):
            raise ValueError(
                f"{path} is {told.get('program')} of kind {told.get('kind')}, expected run.py {NAME} --variants"
            )
        for shape, times in zip(told["shapes"], told["us"], strict=True):
            us = {name: t for name, t in zip(told["contenders"], times, strict=True) if t and name.startswith("sm90a_")}
            if len(us) > 1:
                found.append(_timed(shape, us))
    return found


def _timed(shape: Sequence[Any], us: Mapping[str, float]) -> Timed:
    kind, tokens, experts, top, hidden, inner = shape
    call = ShapedCall(family=NAME, call_class=0, sizes=(tokens * top, inner, hidden, experts), alignments=(16,) * 3)
    return Timed(text=f"{kind}, {tokens} tokens, top {top} of {experts} x {hidden} x {inner}", call=call, us=us)


def row_of(name: str, tile: str = "", constants: Mapping[str, int] | None = None) -> Row:
    """The model's inputs of a variant, of the tile with these constants."""
    (row,) = TUNING.rows(parse_name(name), 0)
    is_fitted = bool(tile) and name.endswith(f"_{tile}")
    return replace(row, facts=row.facts._replace(**constants)) if is_fitted and constants else row


def losses(timed: Sequence[Timed], rows: Mapping[str, Row]) -> list[float]:
    """Of each call."""
    firsts = [min(t.us, key=lambda name: (model_ns(rows[name], t.call, SM_COUNT), name)) for t in timed]
    return [t.us[first] / min(t.us.values()) - 1 for t, first in zip(timed, firsts, strict=True)]


def objective(timed: Sequence[Timed], rows: Mapping[str, Row], tile: str) -> float:
    """The smooth loss, and a share of the tile's error."""
    lost, errors = [], []
    for t in timed:
        guesses = {name: math.log(model_ns(rows[name], t.call, SM_COUNT) / 1e3) for name in t.us}
        least, best = min(guesses.values()), min(t.us.values())
        chances = {name: math.exp(-SHARPNESS * (guess - least)) for name, guess in guesses.items()}
        lost.append(
            sum(p * min(t.us[name] / best, MOST_RATIO) for name, p in chances.items()) / sum(chances.values()) - 1
        )
        near = [name for name in t.us if name.endswith(f"_{tile}") and t.us[name] <= NEAR * best]
        errors += [(guesses[name] - math.log(t.us[name])) ** 2 for name in near]
    return statistics.fmean(lost) + ERROR_SHARE * (statistics.fmean(errors) if errors else 0.0)


def fitted(timed: Sequence[Timed], tile: str, steps: int, seed: int) -> dict[str, int]:
    """The tile's constants by a random walk that keeps what is better, with ever smaller steps."""
    names = sorted({name for t in timed for name in t.us})
    (facts,) = {row_of(name).facts for name in names if name.endswith(f"_{tile}")}
    best = {name: getattr(facts, name) for name in CONSTANTS}
    generator, others = random.Random(seed), {name: row_of(name) for name in names}

    def value(constants: Mapping[str, int]) -> float:
        return objective(timed, others | {n: row_of(n, tile, constants) for n in names if n.endswith(f"_{tile}")}, tile)

    least = value(best)
    for step in range(steps):
        spread = SPREAD * 0.1 ** (step / steps)
        tried = {name: round(now * math.exp(generator.gauss(0.0, spread))) for name, now in best.items()}
        if (found := value(tried)) < least:
            best, least = tried, found
    return best


def loss_lines(title: str, timed: Sequence[Timed], rows: Mapping[str, Row], shown: int = 3) -> Iterator[str]:
    """The mean, the worst, and the worst calls."""
    if not (lost := losses(timed, rows)):
        return
    yield f"{title}: {statistics.fmean(lost):.2%} in the mean, {max(lost):.1%} at worst of {len(lost)} calls"
    for loss, t in sorted(zip(lost, timed, strict=True), key=lambda pair: -pair[0])[:shown]:
        if loss:
            times = ", ".join(f"{name.rpartition('_')[2]} {us:g}" for name, us in t.us.items())
            yield f"  +{loss:.1%} at {t.text}: {times} us"


def by_layer(timed: Sequence[Timed], tile: str, steps: int, seed: int) -> tuple[list[float], list[float]]:
    """The losses of each layer's calls today, and by constants that are fitted to the other layers."""
    names, today, without = {name for t in timed for name in t.us}, [], []
    for layer in sorted({t.call.sizes[1:] for t in timed}):
        left = [t for t in timed if t.call.sizes[1:] == layer]
        constants = fitted([t for t in timed if t.call.sizes[1:] != layer], tile, steps, seed)
        today += losses(left, {name: row_of(name) for name in names})
        without += losses(left, {name: row_of(name, tile, constants) for name in names})
    return today, without


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path, help="fitted to")
    parser.add_argument("--judged", nargs="*", type=Path, default=[], help="sweeps of other seeds")
    parser.add_argument("--tile", default="t8o", help="the end of the tile's names (t8o)")
    parser.add_argument("--steps", type=int, default=0, help="of the search; 0: nothing is fitted")
    parser.add_argument("--seed", type=int, default=0, help="of the search")
    parser.add_argument("--by-layer", action="store_true", help="leave each layer out of the fit once, and judge there")
    options = parser.parse_args(arguments)
    try:
        to_fit, to_judge = read(options.sweeps), read(options.judged)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if not any(name.endswith(f"_{options.tile}") for t in to_fit for name in t.us):
        parser.error(f"no variant of the sweeps ends in _{options.tile}")
    if options.by_layer:
        for title, lost in zip(
            ("today", "fitted to the other layers"),
            by_layer(to_fit, options.tile, options.steps, options.seed),
            strict=True,
        ):
            print(f"{title}: {statistics.fmean(lost):.2%} in the mean, {max(lost):.1%} at worst of {len(lost)} calls")
        return
    names = {name for t in (*to_fit, *to_judge) for name in t.us}
    stages: list[tuple[str, Mapping[str, int] | None]] = [("today", None)]
    if options.steps:
        stages.append(("fitted", fitted(to_fit, options.tile, options.steps, options.seed)))
    for title, constants in stages:
        rows = {name: row_of(name, options.tile, constants) for name in names}
        for part, timed in (("fitted to", to_fit), ("judged", to_judge)):
            print(*loss_lines(f"{title}, {part}", timed, rows), sep="\n")
        if constants:
            print(*(f"{name} = {value}" for name, value in constants.items()), sep="\n")


if __name__ == "__main__":
    main()
