"""Time gemmill's scaled GEMM ops side by side with what a user would call instead.

    python benchmarks/scaled_mm.py                                  # the shapes of the tables, all ops
    python benchmarks/scaled_mm.py --op fp8 --models llama,qwen     # the layers of models, tensor-parallel 1, 2 and 4
    python benchmarks/scaled_mm.py --vllm-so .../_C_stable_libtorch.abi3.so
    python benchmarks/scaled_mm.py --op fp8_groups --deep-gemm .../deep_gemm --shapes ragged
    python benchmarks/scaled_mm.py --by-backend --match t128x128x128
    python benchmarks/scaled_mm.py --variants --limit-seconds 360   # every loaded variant, for choosing tables
    python benchmarks/scaled_mm.py --dry-run --out-dir /tmp/dry     # the whole program on a CPU, with invented times

Device time is that of a CUDA graph of 20 or more calls, the weights rotated over copies that exceed L2 twice over,
in rounds that alternate between the contenders; medians are given. Host time of a call is a figure of its own.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from gemmill.tune.device import Monitor, now
from gemmill.tune.operands import ROTATED_BYTES, OperandMaker
from gemmill.tune.problems import Op, Problem, tiny
from gemmill.tune.statistics import first_line
from gemmill.tune.timing import DEVICE_TIME, DryTimer, GraphTimer, Plan, Timer
from harness import devices
from harness.backends import backends_record, backends_text
from harness.field import Field, FieldError, make_field
from harness.measuring import Measurement, measure
from harness.plot import draw
from harness.problems import (
    MODEL_M,
    OPS_OF,
    SWEEP_M,
    model_problems,
    parse_shapes,
    ragged_problems,
    table_grid_problems,
    table_problems,
)
from harness.results import (
    SCHEMA_VERSION,
    peers_record,
    row_record,
    sample_record,
    summary_record,
    summary_text,
    table,
    write_json,
)
from harness.selection import selection_us
from harness.sweep import sweep_record, sweep_table

RESULTS = Path(__file__).resolve().parent / "results"
COMPARISON = Plan(rounds=9)
SWEEP = Plan(rounds=5, short=True, give_up_ratio=1.5)
HOST_SHAPE = (16, 128, 128)
WARM_UP_M = 512
DRY_ROTATED_BYTES = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code: 0, 1 where nothing could be timed, 2 where this machine or a library is not fit."""
    options = parse(arguments)
    if not (options.dry_run or torch.cuda.is_available()):
        print("no GPU: nothing can be timed here; --dry-run runs the program without one", file=sys.stderr)
        return 2
    sweeps = options.variants or options.by_backend
    try:
        field = make_field(
            build=options.build,
            sweep=sweeps,
            match=options.match,
            vllm_so=options.vllm_so,
            vllm_apart=options.vllm_apart,
            deep_gemm=options.deep_gemm,
            dry_run=options.dry_run,
        )
    except FieldError as error:
        print(error, file=sys.stderr)
        return 2
    for note in field.notes:
        print(note, file=sys.stderr)
    timer: Timer = DryTimer() if options.dry_run else GraphTimer()
    device = torch.device("cpu" if options.dry_run else "cuda")
    maker = OperandMaker(device, DRY_ROTATED_BYTES if options.dry_run else ROTATED_BYTES)
    problems = sorted({tiny(p) for p in problems_of(options)}) if options.dry_run else problems_of(options)
    plan = SWEEP if sweeps else COMPARISON
    monitor, started = Monitor.of_cuda_device(), now()
    with monitor:
        settled = warm_up(field, maker, timer, problems[0])
        host = host_times(field, maker, timer, sorted({p.op for p in problems}))
        measurements, left_out = measure_all(problems, field, maker, timer, plan, options.limit_seconds)
    record = {
        "schema_version": SCHEMA_VERSION,
        "program": "benchmarks/scaled_mm.py",
        "kind": "backends" if options.by_backend else "sweep" if options.variants else "comparison",
        "dry_run": options.dry_run,
        "date": started,
        "commit": options.commit or devices.commit_of(RESULTS.parent),
        "build": field.build,
        "environment": devices.environment(),
        "while_measuring": monitor.summary(),
        "settled_seconds": round(settled, 2),
        "method": method_record(plan),
        "notes": list(field.notes),
        "host": host,
        "selection_us": selection_us(field.loaded) if field.loaded is not None else None,
        "left_out": [str(problem) for problem in left_out],
    }
    report = report_backends if options.by_backend else report_sweep if options.variants else report_comparison
    report(record, measurements, field, options.out_dir / (options.name or result_stem(record)))
    if left_out:
        print(f"{len(left_out)} shapes left out, from {left_out[0]} on")
    return 0 if measurements else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shapes",
        help='"table" (default), "grid" (the table\'s weights at every M), "ragged" (M of any number, scales in groups), '
        "or MxNxK,MxNxK",
    )
    parser.add_argument(
        "--models", help="layers of llama, qwen, mistral (any beginning of a model's name), with commas"
    )
    parser.add_argument("--m", help="values of M for --models and grid, with commas")
    parser.add_argument("--op", choices=sorted(OPS_OF), default="all")
    parser.add_argument("--build", help="build id or path; the current one by default")
    parser.add_argument("--vllm-so", metavar="PATH", help="vLLM's _C_stable_libtorch.abi3.so")
    parser.add_argument("--vllm-apart", action="store_true", help="run vLLM's library in a process of its own")
    parser.add_argument("--deep-gemm", metavar="FOLDER", help="DeepGEMM's Python package, for scales in groups")
    parser.add_argument(
        "--by-backend", action="store_true", help="cutlass against cutedsl: every loaded variant at every shape"
    )
    parser.add_argument("--variants", action="store_true", help="sweep: time every loaded variant at every shape")
    parser.add_argument("--match", default="", help="sweep only variants whose name contains this")
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--name", help="file name of the results, without suffix")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="begin no shape after this long")
    parser.add_argument("--commit", help="commit to record, where this is no checkout")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU, invented times")
    options = parser.parse_args(arguments)
    try:
        problems_of(options)
    except ValueError as error:
        parser.error(str(error))
    return options


def problems_of(options: argparse.Namespace) -> list[Problem]:
    """The problems asked for, those that share weights together. Raises ValueError."""
    ops = OPS_OF[options.op]
    m_values = numbers(options.m) if options.m else (SWEEP_M if options.variants else MODEL_M)
    shapes = options.shapes or ("" if options.models else "grid" if options.variants else "table")
    problems = model_problems(options.models.split(","), ops, m_values) if options.models else []
    if shapes == "table":
        problems += table_problems(ops)
    elif shapes == "ragged":
        problems += ragged_problems()
    elif shapes == "grid":
        problems += table_grid_problems(ops, m_values)
    elif shapes:
        problems += parse_shapes(shapes, ops)
    return sorted(set(problems))


def numbers(text: str) -> tuple[int, ...]:
    """Positive numbers with commas. Raises ValueError."""
    if not all(part.strip().isdigit() and int(part) for part in text.split(",")):
        raise ValueError(f"--m {text!r} is not a list of positive numbers such as 1,16,64")
    return tuple(int(part) for part in text.split(","))


def warm_up(field: Field, maker: OperandMaker, timer: Timer, problem: Problem) -> float:
    """Bring the clocks to where they stay; returns the seconds that took."""
    operands = maker.make(Problem(op=problem.op, m=max(problem.m, WARM_UP_M), n=problem.n, k=problem.k))
    return timer.settle(lambda: field.subject.multiply(operands, 0))


def host_times(field: Field, maker: OperandMaker, timer: Timer, ops: Sequence[Op]) -> dict[str, dict]:
    """Host time of one call of a small problem, by op and contender."""
    m, n, k = HOST_SHAPE
    times: dict[str, dict] = {}
    for op in ops:
        operands = maker.make(Problem(op=op, m=m, n=n, k=k if op.groups is None else 2 * op.groups.size))
        times[op.value] = {}
        for contender in (field.subject, *field.also, *field.peers):
            if not contender.takes(operands.problem):
                continue
            try:
                times[op.value][contender.name] = sample_record(contender.host_us(operands, timer))
            except (RuntimeError, ValueError, TypeError) as error:
                print(f"no host time of {contender.name}: {first_line(error)}", file=sys.stderr)
                timer.clear()
    return times


def measure_all(
    problems: Sequence[Problem], field: Field, maker: OperandMaker, timer: Timer, plan: Plan, limit_seconds: float
) -> tuple[list[Measurement], list[Problem]]:
    """Measurements, and the problems that the time did not suffice for."""
    start, measurements = time.perf_counter(), []
    for i, problem in enumerate(problems):
        if time.perf_counter() - start > limit_seconds:
            return measurements, list(problems[i:])
        try:
            found = measure(maker.make(problem), field.contenders(problem), timer, plan)
        except RuntimeError as error:
            print(f"{problem}: the device gave up, nothing after it is measured: {first_line(error)}", file=sys.stderr)
            return measurements, list(problems[i:])
        measurements.append(found)
        for name, failure in found.failures.items():
            print(f"{problem}: {name} failed: {failure}", file=sys.stderr)
    return measurements, []


def method_record(plan: Plan) -> dict[str, object]:
    """How the times were taken, for the reader of the JSON."""
    return {
        "rounds": plan.rounds,
        "give_up_ratio": plan.give_up_ratio,
        "rotated_bytes": ROTATED_BYTES,
        "data": "uniform random: e4m3 and bf16 in [-1, 1], s8 in [-128, 127]",
        "device_time": DEVICE_TIME,
        "ratio": "median over rounds of peer / gemmill in the same round, against the peer for which it is least",
        "host_time": f"loop of calls at M x N x K = {' x '.join(map(str, HOST_SHAPE))}, through the op's .default",
    }


def result_stem(record: dict) -> str:
    """File name of the results, without suffix: what, where and when."""
    gpu = (record["environment"]["gpu"] or "cpu").replace("NVIDIA ", "").replace(" ", "-").lower()
    return f"scaled_mm-{record['kind']}-{gpu}-{record['date'][:10]}"


def report_comparison(record: dict, measurements: list[Measurement], field: Field, path: Path) -> None:
    """Write and print a comparison."""
    names = [contender.name for contender in field.all]
    rows = [row_record(found, field.peers) for found in measurements]
    summary, peers = summary_record(rows), peers_record(rows)
    write_json(record | {"summary": summary, "peers": peers, "rows": rows}, path.with_name(f"{path.name}.json"))
    title = f"{record['environment']['gpu']}, {record['date'][:10]}"
    drawn = draw(rows, names, title, path.with_name(f"{path.name}.svg"))
    print(table(rows, names))
    print(summary_text(summary, peers, record["host"]))
    if (choice := record["selection_us"]) is not None:
        print(f"a choice, us: {choice}")
    print(f"written: {path}.json" + (" and .svg" if drawn else "; no plot without matplotlib"))


def report_sweep(record: dict, measurements: list[Measurement], field: Field, path: Path) -> None:
    """Write and print a sweep."""
    peers = [contender.name for contender in field.peers if contender.applies_scales]
    write_json(record | sweep_record(measurements), path.with_name(f"{path.name}.json"), indent=None)
    print(sweep_table(measurements, field.subject.name, [variant.name for variant in field.variants], peers))
    print(f"written: {path}.json")


def report_backends(record: dict, measurements: list[Measurement], field: Field, path: Path) -> None:
    """Write and print what each code generator reaches."""
    compared = backends_record(measurements, [variant.name for variant in field.variants])
    write_json(record | compared | sweep_record(measurements), path.with_name(f"{path.name}.json"), indent=None)
    print(backends_text(compared))
    print(f"written: {path}.json")


if __name__ == "__main__":
    sys.exit(main())
