"""Compare the choice with the fastest variants at shapes that nobody tuned: random, far from those of tables and the model's fit.

    python benchmarks/judge.py --seed 7 --vllm-so .../_C_stable_libtorch.abi3.so --deep-gemm .../deep_gemm
    python benchmarks/judge.py --seed 7 --classes fp8,bf16 --shapes 20 --ladders 1 --sieve 24+12
    python benchmarks/judge.py --seed 7 --family blockscaled --classes nvfp4_bf16,mxfp4_e4m3 --humming DIR --humming-jobs 12
    python benchmarks/judge.py --seed 7 --family fused_experts --classes nvfp4,mxfp4_e4m3 --calls '--tokens 16,256' --shapes 4
    python benchmarks/judge.py --seed 7 --only compiler=nvcc --shapes 15 --rows 15 --ladders 0 --sieve 16+4 --limit-s 140
    python benchmarks/judge.py --seed 7 --limit-s 0             # the figures of an earlier run of this seed
    python benchmarks/judge.py --seed 7 --dry-run --out-dir /tmp/dry

At each shape all loaded variants are timed quickly (`harness/sieve.py`), then gemmill's choice, the fastest few and the peers
carefully, interleaved in one run (`harness/timers.py`). Prints for each class of calls: time of the best peer over gemmill's, the
regret of the choice against the fastest variant, and on ladders of M whether any M takes longer than a larger one. Classes
take turns, so that a run cut short by --limit-s says something of each; each figure is on disk at once, and the same
command goes on from there. A shape that hangs ends the process after --shape-s; the next run leaves it out.

With --only, the fastest of the variants that fit a filter run beside the others: time of the best of them over the best of all,
at drawn shapes and at --rows of the shipped table. With --between, the choice is judged at weights of the table, between its rows.
"""

import argparse
import faulthandler
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import torch

from gemmill.families.scaled_mm.sweep import MeasuredOp
from gemmill.numerics.measured import ROTATED_BYTES
from gemmill.space.filters import FilterError, apply
from gemmill.space.names import parse_name
from gemmill.space.selections import Selection
from gemmill.tuner.device import now
from gemmill.tuner.workloads import Workload, tiny
from gemmill.vocab import Arch
from harness import devices
from harness.contenders import FieldError, LocalContender
from harness.drawing import (
    between_rows,
    classes_of,
    drawings,
    drawn,
    drawn_calls,
    held_weights,
    judged,
    ladders,
    table_rows,
)
from harness.field import make_field
from harness.judging import CAREFUL, FINALISTS, Judge
from harness.lines import Lines, LinesError
from harness.results import SCHEMA_VERSION
from harness.sieve import QuickDry, QuickGraphs, Sieve, Variants
from harness.timers import DEVICE_TIME, DryTimer, GraphTimer, of_this_gpu
from harness.verdict import class_record, verdict_text
from harness.written import write_json
from peers import PEERS
from peers.deep_gemm import compiled_ahead
from timed import benchmark_of

RESULTS = Path(__file__).resolve().parent / "results"
FAMILY = "scaled_mm"
CLASSES = drawings()[FAMILY].classes
COMPILE_LIMIT_S = 240.0
DRY_ROTATED_BYTES = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code: 0, 1 where no shape was compared, 2 where this machine, a library or a file is not fit."""
    options = parse(arguments)
    if not (options.dry_run or torch.cuda.is_available()):
        print("no GPU: nothing can be timed here; --dry-run runs the program without one", file=sys.stderr)
        return 2
    begun = time.perf_counter()
    try:
        shapes, rungs = workloads_of(options)
        judge, setup = prepared(options, shapes)
        lines = Lines(options.out_dir / f"{options.name}.jsonl", setup)
    except (FieldError, LinesError) as error:
        print(error, file=sys.stderr)
        return 2
    for note in judge.field.notes:
        print(note, file=sys.stderr)
    notes = [*judge.field.notes]
    if options.deep_gemm and options.family == FAMILY and not options.dry_run and options.limit_s > 0:
        waiting = [p for p in shapes if p.kind == MeasuredOp.FP8_GROUPS and lines.waits(str(p))]
        notes += [compiled_ahead(options.deep_gemm, waiting, options.jobs, COMPILE_LIMIT_S)] if waiting else []
        print("\n".join(notes[-1:]), flush=True)
    started = now()
    with of_this_gpu() as monitor:
        if options.limit_s > 0:
            judge.timer.settle(judge.field.subject.call(judge.maker.make(shapes[0]), 0))
        run_all(judge, shapes, rungs, lines, begun + options.limit_s, options.shape_s)
    lines.close()
    record = setup | {
        "schema_version": SCHEMA_VERSION,
        "dry_run": options.dry_run,
        "date": started,
        "environment": devices.environment(),
        "while_measuring": monitor.summary(),
        "notes": notes,
        "lost": lines.lost,
    }
    return report(record, lines, options.out_dir / f"{options.name}.json")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for peer in PEERS:
        peer.add_options(parser)
    parser.add_argument(
        "--seed", type=int, required=True, help="of the shapes: a new one each time something is judged"
    )
    parser.add_argument("--family", choices=judged(), default=FAMILY, help="whose calls are judged")
    parser.add_argument("--classes", help="of calls of the family, with commas")
    parser.add_argument("--shapes", type=int, default=60, help="of each class")
    parser.add_argument("--calls", default="", help="further options of the family's calls, as run.py takes them")
    parser.add_argument("--ladders", type=int, default=2, help="weights of each class that are timed at many M")
    parser.add_argument(
        "--sieve", default="all", help='variants timed quickly: "all", or B+R: the model\'s B best, R others'
    )
    parser.add_argument(
        "--only", metavar="PATTERN", help="also judge the variants that fit this filter alone; no peers run"
    )
    parser.add_argument(
        "--rows", type=int, default=0, help="shapes of each class from the shipped table, beside the drawn"
    )
    parser.add_argument(
        "--between",
        type=int,
        default=0,
        help="shapes of each class at the weights of the shipped table, with an M of no row",
    )
    parser.add_argument("--fitted", nargs="*", type=Path, default=sorted(RESULTS.glob("*.jsonl.xz")), metavar="JOURNAL")
    parser.add_argument(
        "--tables", nargs="*", type=Path, default=[], help="tables besides the shipped ones: no shape of theirs"
    )
    parser.add_argument("--build", help="build id or path; the current one by default")
    parser.add_argument("--jobs", type=int, default=12, help="processes that compile DeepGEMM's kernels")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin nothing after so many seconds")
    parser.add_argument("--shape-s", type=float, default=60.0, help="end the process where one shape takes longer")
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--name", help="file name of the results, without suffix")
    parser.add_argument("--commit", help="commit to record, where this is no checkout")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU, invented times")
    options = parser.parse_args(arguments)
    benchmark = benchmark_of(options.family)
    default = benchmark.judged if benchmark.drawing is None else benchmark.drawing.classes
    options.classes = options.classes or ",".join(default)
    check_classes(parser, options)
    best, _, others = options.sieve.partition("+")
    if options.sieve != "all" and not (best.isdigit() and others.isdigit()):
        parser.error(f"--sieve {options.sieve!r} is neither all nor two numbers such as 24+12")
    options.name = options.name or f"judge-{options.seed}-{now()[:10]}"
    return options


def check_classes(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exit with a sentence where classes are none of the family's, or options go with tables of which the family has none."""
    if options.family in drawings():
        known = classes_of(options.family)
        if unknown := [name for name in options.classes.split(",") if name not in known]:
            parser.error(f"--classes {unknown[0]!r} is none of {', '.join(known)}")
        if options.calls:
            parser.error(f"--calls {options.calls!r}: {options.family} has none; --classes and --shapes say all")
        return
    if options.rows or options.between or options.only:
        parser.error(f"--rows, --between and --only take {' and '.join(drawings())}, not {options.family}")
    options.ladders = 0
    try:
        options.classes = ",".join(dict.fromkeys(workload.kind for workload in workloads_of(options)[0]))
    except ValueError as error:
        parser.error(str(error))


def prepared(options: argparse.Namespace, shapes: Sequence[Workload] = ()) -> tuple[Judge, dict[str, Any]]:
    """All that is loaded, and the beginning of the record. Raises FieldError."""
    asked = {"also": "", "batch_invariant": False, "by_backend": False, "alone": False, "match": "", "drawn": shapes}
    asked["op"] = options.classes
    benchmark = benchmark_of(options.family)
    asked["variants"] = is_tabled = benchmark.drawing is not None
    field = make_field(benchmark, argparse.Namespace(**{**vars(options), **asked}))
    dry = options.dry_run
    best, _, others = options.sieve.partition("+")
    sieve = Sieve() if options.sieve == "all" else Sieve(best=int(best), others=int(others), seed=options.seed)
    table = None if field.loaded is None else field.loaded.table
    only = frozenset[str]()
    if options.only:
        field, only = replace(field, peers=()), fitting(options.only, [variant.name for variant in field.variants])
    judge = Judge(
        field=field,
        variants=Variants.of([v for v in field.variants if isinstance(v, LocalContender)], table)
        if is_tabled
        else None,
        maker=benchmark.maker(torch.device("cpu" if dry else "cuda"), DRY_ROTATED_BYTES if dry else ROTATED_BYTES),
        timer=DryTimer() if dry else GraphTimer(),
        quick=QuickDry() if dry else QuickGraphs(),
        sieve=sieve,
        only=only,
    )
    setup = {
        "program": "benchmarks/judge.py",
        "kind": "judge",
        "seed": options.seed,
        "family": options.family,
        "classes": options.classes,
        "calls": options.calls,
        "shapes_each": options.shapes,
        "ladders_each": options.ladders,
        "rows_each": options.rows,
        "between_each": options.between,
        "only": options.only,
        "build": field.build,
        "peers": [peer.name for peer in field.peers],
        "commit": options.commit or devices.commit_of(RESULTS.parent),
        "method": {
            "rounds": CAREFUL.rounds,
            "rotated_bytes": ROTATED_BYTES,
            "data": benchmark.data,
            "device_time": DEVICE_TIME,
            "variants": str(sieve),
            "ratio": "median over rounds of peer / gemmill in the same round, against the peer for which it is least",
            "regret": f"median over rounds of gemmill / variant - 1, the largest of {FINALISTS} variants that the sieve finds "
            "fastest; 0 at least",
        },
    }
    return judge, setup


def fitting(pattern: str, names: Sequence[str]) -> frozenset[str]:
    """The names that fit a filter of `gemmill list`. Raises FieldError."""
    configs = {name: parse_name(name) for name in names if name.startswith("sm")}
    loaded = Selection(name="loaded", arch=Arch.SM90A, configs=tuple(configs.values()), rejections=())
    try:
        kept = set(apply(loaded, [pattern]).configs)
    except FilterError as error:
        raise FieldError(f"--only: {error}") from None
    return frozenset(name for name, config in configs.items() if config in kept)


def workloads_of(options: argparse.Namespace) -> tuple[list[Workload], list[list[Workload]]]:
    """Shapes and ladders, classes taking turns, drawn shapes and rows of the table too. Raises ValueError."""
    if options.family not in drawings():
        calls = drawn_calls(options.family, options.classes, options.shapes, options.seed, options.calls.split())
        return list(dict.fromkeys(map(benchmark_of(options.family).tiny, calls))) if options.dry_run else calls, []
    held = sorted(held_weights(options.fitted, options.tables))
    classes = options.classes.split(",")
    of_table = [
        [*table_rows(op, options.rows, options.seed), *between_rows(op, options.between, options.seed)]
        for op in classes
    ]
    shapes = turns([*(drawn(op, options.shapes, options.seed, held) for op in classes), *of_table])
    rungs = turns([ladders(op, options.ladders, options.seed, held) for op in classes])
    if options.dry_run:
        shapes = list(dict.fromkeys(map(tiny, shapes)))
        rungs = [list(dict.fromkeys(map(tiny, ladder))) for ladder in rungs]
    return shapes, rungs


def turns(of_classes: Sequence[Sequence[Any]]) -> list[Any]:
    """One of each in turn."""
    return [found for found in chain.from_iterable(zip_longest(*of_classes)) if found is not None]


def run_all(
    judge: Judge,
    shapes: Sequence[Workload],
    rungs: Sequence[Sequence[Workload]],
    lines: Lines,
    end: float,
    shape_s: float,
) -> None:
    """Measure the file's missing shapes until `end`, the first half of the shapes before the ladders."""
    half = len(shapes) // 2
    work: list[tuple[str, Any]] = [(str(workload), workload) for workload in shapes]
    work[half:half] = [(f"ladder {ladder[0].op} {ladder[0].n} x {ladder[0].k}", ladder) for ladder in rungs]
    for done, (key, workload) in enumerate(work):
        if not lines.waits(key):
            continue
        begun = time.perf_counter()
        if begun > end:
            print(f"{len(work) - done} of {len(work)} left out, from {key} on")
            return
        lines.begin(key)
        faulthandler.dump_traceback_later(shape_s, exit=True, file=sys.__stderr__)
        result = judge.ladder(workload) if isinstance(workload, list) else judge.shape(workload)
        faulthandler.cancel_dump_traceback_later()
        seconds = time.perf_counter() - begun
        lines.end(key, result | {"seconds": round(seconds, 3)})
        print(progress(done + 1, len(work), key, lines.results[key], seconds), flush=True)


def progress(done: int, total: int, key: str, row: Mapping[str, Any], seconds: float) -> str:
    """A line about the latest measurement."""
    told = ""
    if row["kind"] == "shape":
        ratio, regret = row["ratio"], row["regret"]
        told = f"ratio {'-' if ratio is None else format(ratio, '.2f')} regret {'-' if regret is None else format(regret, '.0%')}"
    return f"{done}/{total} {key}: {told} {seconds:.1f} s"


def report(record: Mapping[str, Any], lines: Lines, path: Path) -> int:
    """Write and print all figures so far. Returns the exit code."""
    rows = list(lines.results.values())
    shapes = [row for row in rows if row["kind"] == "shape"]
    found_ladders = [row for row in rows if row["kind"] == "ladder"]
    family = record["family"]
    classes = [
        class_record(
            op, [row for row in shapes if row["op"] == op], [row for row in found_ladders if row["op"] == op], family
        )
        for op in record["classes"].split(",")
    ]
    spent = {kind: round(sum(row["seconds"] for row in rows if row["kind"] == kind), 1) for kind in ("shape", "ladder")}
    whole = dict(record) | {"seconds": spent, "verdict": classes, "rows": shapes, "ladders": found_ladders}
    write_json(whole, path, indent=None)
    print(verdict_text(classes, shapes, family))
    print(f"seconds: {json.dumps(spent)}; written: {path}")
    for key in lines.lost:
        print(f"begun and never ended: {key}", file=sys.stderr)
    return 0 if shapes else 1


if __name__ == "__main__":
    sys.exit(main())
