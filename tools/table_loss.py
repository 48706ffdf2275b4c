"""The loss of a shape that no table has: each measured shape gets the choice of another's row, and the model's.

    python tools/table_loss.py benchmarks/results/tune-h200-2026-11-21.jsonl.xz
    git show 2150082e:benchmarks/results/scaled_mm-sweep-fp8-both-h200-2026-11-20.json > sweep.json && python tools/table_loss.py sweep.json

Takes journals of `gemmill tune` and results of `benchmarks/run.py scaled_mm --variants`. Prints, by distance of the weights
and for each pair of M, the geometric mean of (time of the variant that would be taken) / (time of the best). Variants
that a sweep gave up on or did not try count as 1.6 times the best; the model chooses among timed ones.
docs/notes/tables.md has the result.
"""

import argparse
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TypedDict

from gemmill.families.scaled_mm.sweep import SWEEP
from gemmill.family import Row
from gemmill.runtime.choosing import model_ns
from gemmill.runtime.variant_table import make_variant_table
from gemmill.space.names import parse_name, to_name
from gemmill.space.selections import Selection, select
from gemmill.tuner.journal import read_journal
from gemmill.tuner.program import stand_in_build
from gemmill.tuner.workloads import Workload, workload_of
from gemmill.typed_json import read_json
from gemmill.vocab import Arch

SM_COUNT = 132
GIVEN_UP = 1.6
FEW_ROWS = 128
DISTANCES = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, math.inf)
Times = dict[Workload, dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--selection", help="only the variants of this selection")
    args = parser.parse_args()
    times = read(args.sweeps)
    if args.selection:
        names = {to_name(config) for config in select(args.selection).configs}
        times = {p: {name: t for name, t in us.items() if name in names} for p, us in times.items()}
    best = {workload: min(us, key=lambda name: (us[name], name)) for workload, us in times.items()}
    print(f"{len(times)} shapes of {len({p.at[:-1] for p in times})} weights")
    losses = {workload: by_model(workload, us) for workload, us in times.items()}
    for op in sorted({workload.op for workload in losses}):
        for label, few in (("M up to 128", True), ("above", False)):
            if ratios := [loss for p, loss in losses.items() if p.op == op and (p.step <= FEW_ROWS) is few]:
                print(
                    f"the model, {op}, {label}: {mean(ratios):.3f}, at worst {max(ratios):.2f} ({len(ratios)} shapes)"
                )
    print(f"the model: {mean(losses.values()):.3f}")
    nearby = by_distance(times, best)
    for low, high in pairwise(DISTANCES):
        if ratios := [ratio for distance, ratio in nearby if low <= distance < high]:
            print(f"weights {low} to {high} octaves away: {mean(ratios):.3f} ({len(ratios)} pairs)")
    print("by M of the row (columns) for a call's M (rows):")
    for m in SWEEP.steps:
        print(f"{m:>6}", *(f"{by_m(times, best, m, other):5.2f}" for other in SWEEP.steps))


def read(paths: Iterable[Path]) -> Times:
    """Shapes with their variants' times, later files over earlier ones."""
    times: Times = {}
    for path in paths:
        of_file = (
            of_journal(path) if ".jsonl" in path.name else of_sweep(read_json(path, Sweep, "name a journal or a sweep"))
        )
        for workload, us in of_file:
            times.setdefault(workload, {}).update({name: t for name, t in us.items() if name.startswith("sm")})
    return {workload: us for workload, us in times.items() if us}


def of_journal(path: Path) -> Iterator[tuple[Workload, dict[str, float]]]:
    for (workload, _, _), entry in read_journal(path).entries.items():
        yield workload, {name: statistics.median(us) for name, us in entry.outcome.rounds_us.items()}


class Sweep(TypedDict):
    """The fields that this program reads of a sweep."""

    shapes: list[tuple[str, int, int, int]]
    contenders: list[str]
    us: list[list[float | None]]
    """By shape and contender."""


def of_sweep(data: Sweep) -> Iterator[tuple[Workload, dict[str, float]]]:
    for (op, m, n, k), row in zip(data["shapes"], data["us"], strict=True):
        found = {name: us for name, us in zip(data["contenders"], row, strict=True) if us}
        yield workload_of(op, {"m": m, "n": n, "k": k}), found


def mean(ratios: Iterable[float]) -> float:
    """Geometric."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


@cache
def row_of(name: str) -> Row:
    config = parse_name(name)
    selection = Selection(name="one", arch=Arch.SM90A, configs=(config,), rejections=())
    entries = stand_in_build(selection)[1].entries
    return make_variant_table(entries, [entries[0].symbol], ()).rows[0]


def by_model(workload: Workload, us: dict[str, float]) -> float:
    chosen = min(us, key=lambda name: model_ns(row_of(name), workload.call, SM_COUNT))
    return us[chosen] / min(us.values())


def taken(us: dict[str, float], name: str) -> float:
    return us[name] / min(us.values()) if name in us else GIVEN_UP


def by_distance(times: Times, best: dict[Workload, str]) -> Sequence[tuple[float, float]]:
    return [
        (sum(abs(math.log2(a / b)) for a, b in zip(p.at[:-1], q.at[:-1], strict=True)), taken(us, best[q]))
        for p, us in times.items()
        for q in best
        if q.op == p.op and q.step == p.step and q.at != p.at
    ]


def by_m(times: Times, best: dict[Workload, str], m: int, other: int) -> float:
    pairs = ((us, workload_of(p.op, p.sizes | {"m": other})) for p, us in times.items() if p.step == m)
    return mean(taken(us, best[q]) for us, q in pairs if q in best)


if __name__ == "__main__":
    main()
