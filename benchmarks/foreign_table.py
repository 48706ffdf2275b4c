"""Whether another device's tuned table serves better than the model: both choices timed on this device, in one run.

    python benchmarks/foreign_table.py --seed 3 --shapes 60          # on a device without a table of its own
    python benchmarks/foreign_table.py --seed 3 --dry-run --out-dir /tmp/dry

Draws shapes among the rows of the shipped tables; every second has fewer rows than was timed. Of each it times the variant that the tables choose and the one that
the model chooses, pinned, rounds alternating; where both are the same, the ratio is 1. Prints for each class of calls the
model's time over the table's.
"""

import argparse
import random
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import gemmill
from gemmill.families.scaled_mm.cases.measured import GemmMaker
from gemmill.families.scaled_mm.sweep import MeasuredOp
from gemmill.locations import runtime_tables_dir
from gemmill.numerics.measured import ROTATED_BYTES
from gemmill.runtime.library import Build
from gemmill.runtime.select import select
from gemmill.runtime.table_file import read_table
from gemmill.tuner.device import now
from gemmill.tuner.workloads import Workload
from harness import devices
from harness.contenders import SM_COUNT, LocalContender
from harness.measuring import measure
from harness.results import SCHEMA_VERSION, sample_record
from harness.statistics import geometric_mean, paired_ratio
from harness.timers import DEVICE_TIME, DryTimer, GraphTimer, Rounds, of_this_gpu
from harness.written import write_json
from timed import benchmark_of
from timed.scaled_mm import gemm

RESULTS = Path(__file__).resolve().parent / "results"
CAREFUL = Rounds(rounds=5, short=True)


def drawn(count: int, seed: int) -> list[Workload]:
    """So many shapes of each class, classes taking turns: a row of the shipped tables, then one with M of 0.6 to 1 of a row's."""
    of_class: dict[str, set[tuple[int, int, int]]] = defaultdict(set)
    for path in sorted(runtime_tables_dir().glob("*.json*")):
        for row in read_table(path).rows:
            if row.op in list(MeasuredOp):
                of_class[row.op].add((row.sizes["m"], row.sizes["n"], row.sizes["k"]))
    found = []
    for name in sorted(of_class):
        shapes = sorted(of_class[name])
        dice = random.Random(f"{seed} {name}")
        for i, (m, n, k) in enumerate(dice.sample(shapes, min(count, len(shapes)))):
            rows = max(1, round(m * dice.uniform(0.6, 1))) if i % 2 else m
            found.append(gemm(op=MeasuredOp(name), m=rows, n=n, k=k))
    return sorted(found, key=lambda workload: random.Random(f"{seed} {workload}").random())


def choices_of(build: Build, workload: Workload, sm_count: int) -> tuple[str | None, str | None, str]:
    """The variant by the tables, the one by the model, and the evidence for the first."""
    table = build.table
    by_table = select(table, workload.call, sm_count)
    by_model = select(replace(table, tuned=()), workload.call, sm_count)
    names = [choice.entry.name if choice.entry else None for choice in (by_table, by_model)]
    return names[0], names[1], by_table.trust.name.lower()


def row_of(
    build: Build, workload: Workload, pinned: dict[str, LocalContender], maker: GemmMaker, timer: Any, sm_count: int
) -> dict[str, Any]:
    """A shape's row: both choices, and the model's time over the table's."""
    by_table, by_model, trust = choices_of(build, workload, sm_count)
    row = {"op": workload.kind, **workload.sizes, "trust": trust, "by_table": by_table, "by_model": by_model}
    if by_table is None or by_model is None:
        return row | {"ratio": None}
    if by_table == by_model:
        return row | {"ratio": 1.0}
    found = measure(maker.make(workload), [pinned[by_table], pinned[by_model]], timer, CAREFUL)
    samples = found.samples
    both = by_table in samples and by_model in samples
    ratio = round(paired_ratio(samples[by_model], samples[by_table]), 4) if both else None
    times = {name: sample_record(taken) for name, taken in samples.items()}
    return row | {"ratio": ratio, "contenders": times, "failures": found.failures}


def verdict_of(rows: list[dict[str, Any]]) -> dict[str, dict[str, float | int]]:
    """By class: how many shapes, how many of one choice, the mean ratio and the least."""
    found = {}
    for op in sorted({row["op"] for row in rows}):
        ratios = [row["ratio"] for row in rows if row["op"] == op and row["ratio"] is not None]
        same = sum(row["by_table"] == row["by_model"] for row in rows if row["op"] == op)
        if ratios:
            mean = round(geometric_mean(ratios), 4)
            found[op] = {"shapes": len(ratios), "same": same, "model_over_table": mean, "least": min(ratios)}
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit code: 0, 2 where there is no GPU or no build."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True, help="of the shapes drawn among the tables' rows")
    parser.add_argument("--shapes", type=int, default=12, help="of each class")
    parser.add_argument("--build", help="build id or path; the current one by default")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="begin no shape after this long")
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--commit", help="commit to record, where this is no checkout")
    parser.add_argument("--dry-run", action="store_true", help="two shapes on the CPU, invented times")
    options = parser.parse_args(arguments)
    dry = options.dry_run
    if not (dry or torch.cuda.is_available()):
        print("no GPU: nothing can be timed here; --dry-run runs the program without one", file=sys.stderr)
        return 2
    try:
        build = gemmill.load(options.build)
    except (OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    variants = benchmark_of("scaled_mm").variants(build)
    pinned = {variant.name: variant for variant in variants if isinstance(variant, LocalContender)}
    maker = GemmMaker(torch.device("cpu" if dry else "cuda"), 4096 if dry else ROTATED_BYTES)
    timer = DryTimer() if dry else GraphTimer()
    sm_count = SM_COUNT if dry else torch.cuda.get_device_properties(0).multi_processor_count
    workloads = drawn(options.shapes, options.seed)
    started, rows = now(), []
    with of_this_gpu() as monitor:
        begun = time.perf_counter()
        for done, workload in enumerate(workloads, 1):
            if time.perf_counter() - begun > options.limit_seconds:
                break
            rows.append(row_of(build, workload, pinned, maker, timer, sm_count))
            print(f"{done}/{len(workloads)} {workload}: {rows[-1]['ratio']}", flush=True)
    verdict = verdict_of(rows)
    record = {
        "schema_version": SCHEMA_VERSION,
        "program": "benchmarks/foreign_table.py",
        "kind": "foreign_table",
        "seed": options.seed,
        "dry_run": dry,
        "build": build.build_id,
        "tables": [path.name for path in sorted(runtime_tables_dir().glob("*.json*"))],
        "commit": options.commit or devices.commit_of(RESULTS.parent),
        "date": started,
        "environment": devices.environment(),
        "while_measuring": monitor.summary(),
        "method": {"rounds": CAREFUL.rounds, "device_time": DEVICE_TIME, "ratio": "model / table, median over rounds"},
        "left_out": len(workloads) - len(rows),
        "verdict": verdict,
        "rows": rows,
    }
    name = f"foreign-table-{options.seed}-{started[:10]}.json"
    write_json(record, options.out_dir / name, indent=None)
    for op, found in verdict.items():
        print(op, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
