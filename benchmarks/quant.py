"""Time gemmill's quantisation ops side by side with vLLM's, against the bandwidth that copying reaches in the same run.

    python benchmarks/quant.py --vllm-so .../_C_stable_libtorch.abi3.so          # every op, the table's shapes and the grid
    python benchmarks/quant.py --ops silu,rms_norm --shapes table,512x4096
    python benchmarks/quant.py --build A --also B,C                              # builds beside each other
    python benchmarks/quant.py --dry-run --out-dir /tmp/dry                      # the whole program on a CPU, with invented times

Device time is that of a CUDA graph of 20 or more calls through the ops, inputs and outputs rotated over copies that exceed
L2 twice over (64 at most), in rounds that alternate between the contenders; medians are given. Host time of a call is a
figure of its own. GB/s counts each byte that must be read or written once, however often it is moved.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import gemmill
from gemmill.manifest import ManifestError
from gemmill.tune.device import Monitor, now
from gemmill.tune.timing import DEVICE_TIME, FEWEST_CALLS, DryTimer, GraphTimer, Timer
from harness import devices
from harness.measuring import Measurement, Plan, first_line, measure
from harness.quant_contenders import QuantContender
from harness.quant_problems import (
    ROTATED_BYTES,
    QuantCase,
    QuantOperandMaker,
    QuantProblem,
    cases_named,
    parse_shapes,
    problems_of,
)
from harness.quant_results import PEER, draw, row_record, summary_record, summary_text, table
from harness.results import SUBJECT, sample_record, write_json

SCHEMA_VERSION = 1
RESULTS = Path(__file__).resolve().parent / "results"
PLAN = Plan(rounds=7)
HOST_SHAPE = (16, 1024)
WARM_UP_SHAPE = (4096, 4096)
DRY_ROTATED_BYTES = 4096
COPIED_ELEMENTS = 1 << 29
"""Of 16 bits: 1 GiB is read, and as much written."""


class FieldError(Exception):
    """Something that was asked for cannot be timed; the text is one sentence."""


@dataclass(frozen=True, kw_only=True)
class QuantField:
    """Who runs; the first is gemmill."""

    contenders: tuple[QuantContender, ...]
    build: dict[str, object] | None
    notes: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code: 0, 1 where nothing could be timed, 2 where this machine or a library is not fit."""
    options = parse(arguments)
    if not (options.dry_run or torch.cuda.is_available()):
        print("no GPU: nothing can be timed here; --dry-run runs the program without one", file=sys.stderr)
        return 2
    try:
        field = make_field(options)
    except FieldError as error:
        print(error, file=sys.stderr)
        return 2
    for note in field.notes:
        print(note, file=sys.stderr)
    timer: Timer = DryTimer() if options.dry_run else GraphTimer()
    device = torch.device("cpu" if options.dry_run else "cuda")
    maker = QuantOperandMaker(device, DRY_ROTATED_BYTES if options.dry_run else ROTATED_BYTES)
    cases, shapes = cases_named(options.ops), list(parse_shapes(options.shapes))
    if options.dry_run:
        shapes = [(min(m, 17), 256) for m, _ in shapes]
    monitor, started = Monitor.of_cuda_device(), now()
    with monitor:
        settled = warm_up(cases[0], field, maker, timer, options.dry_run)
        copy_gbps = copy_bandwidth(timer, device, 1 << 12 if options.dry_run else COPIED_ELEMENTS)
        host = host_times(cases, field, maker, timer)
        measurements, left_out = measure_all(problems_of(cases, shapes), field, maker, timer, options.limit_seconds)
    record = {
        "schema_version": SCHEMA_VERSION,
        "program": "benchmarks/quant.py",
        "dry_run": options.dry_run,
        "date": started,
        "commit": options.commit or devices.commit_of(RESULTS.parent),
        "build": field.build,
        "environment": devices.environment(),
        "while_measuring": monitor.summary(),
        "settled_seconds": round(settled, 2),
        "copy_gbps": round(copy_gbps, 1),
        "method": method_record(),
        "notes": list(field.notes),
        "host": host,
        "left_out": [str(problem) for problem in left_out],
    }
    report(record, measurements, field, options)
    return 0 if measurements else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", help="only ops with one of these in their name, with commas")
    parser.add_argument(
        "--shapes", default="table,grid", help='"table", "grid" or MxHIDDEN, with commas; both by default'
    )
    parser.add_argument("--build", help="build id or path; the current one by default")
    parser.add_argument("--also", default="", help="other builds to time beside it, with commas")
    parser.add_argument("--vllm-so", metavar="PATH", help="vLLM's _C_stable_libtorch.abi3.so")
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--name", help="file name of the results, without suffix")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="begin no problem after this long")
    parser.add_argument("--commit", help="commit to record, where this is no checkout")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU, invented times")
    options = parser.parse_args(arguments)
    try:
        cases_named(options.ops)
        list(parse_shapes(options.shapes))
    except ValueError as error:
        parser.error(str(error))
    return options


def make_field(options: argparse.Namespace) -> QuantField:
    """Load what is to be timed. Raises FieldError."""
    notes: list[str] = []
    contenders, facts = [QuantContender(name=SUBJECT, namespace="gemmill")], None
    try:
        for build in filter(None, options.also.split(",")):
            other = gemmill.load(build).build_id
            contenders.append(QuantContender(name=f"build {other}", namespace=f"gemmill_{other}"))
        manifest = gemmill.load(options.build).manifest
        facts = {"id": manifest.build_id, "selection": manifest.selection, "arch": manifest.arch}
    except (OSError, RuntimeError, ManifestError) as error:
        if not options.dry_run:
            raise FieldError(f"there is no build to time: {first_line(error)}") from None
        notes.append(f"no build is loaded: {first_line(error)}")
    if options.vllm_so:
        try:
            torch.ops.load_library(options.vllm_so)
        except (OSError, RuntimeError) as error:
            raise FieldError(f"vLLM's library {options.vllm_so} cannot be used: {first_line(error)}") from None
        contenders.append(QuantContender(name=PEER, namespace="_C", codes_apart=1.0))
    return QuantField(contenders=tuple(contenders), build=facts, notes=tuple(notes))


def warm_up(case: QuantCase, field: QuantField, maker: QuantOperandMaker, timer: Timer, dry_run: bool) -> float:
    """Bring the clocks to where they stay; returns the seconds that took."""
    m, hidden = HOST_SHAPE if dry_run else WARM_UP_SHAPE
    operands = maker.make(QuantProblem(case_name=case.name, m=m, hidden=hidden))
    return timer.settle(field.contenders[0].call(operands, 0))


def copy_bandwidth(timer: Timer, device: torch.device, elements: int) -> float:
    """GB/s of copying, reads and writes counted: the faster of torch's copy and an elementwise kernel."""
    a = torch.ones(elements, dtype=torch.bfloat16, device=device)
    b = torch.empty_like(a)
    times = []
    for call in (lambda: b.copy_(a), lambda: torch.abs(a, out=b)):
        prepared = timer.prepare([call], FEWEST_CALLS)
        times += [prepared.round() for _ in range(PLAN.rounds)]
        prepared.close()
    return 2 * a.numel() * a.element_size() / min(times) / 1e3


def host_times(
    cases: Sequence[QuantCase], field: QuantField, maker: QuantOperandMaker, timer: Timer
) -> dict[str, dict[str, object]]:
    """Host time of one call of a small problem, by case and contender."""
    m, hidden = HOST_SHAPE
    times: dict[str, dict[str, object]] = {}
    for case in cases:
        operands = maker.make(QuantProblem(case_name=case.name, m=m, hidden=hidden))
        times[case.name] = {}
        for contender in field.contenders:
            if not contender.takes(operands.problem):
                continue
            try:
                times[case.name][contender.name] = sample_record(contender.host_us(operands, timer))
            except (RuntimeError, ValueError, TypeError) as error:
                print(f"{case.name}: no host time of {contender.name}: {first_line(error)}", file=sys.stderr)
                timer.clear()
    return times


def measure_all(
    problems: Sequence[QuantProblem],
    field: QuantField,
    maker: QuantOperandMaker,
    timer: Timer,
    limit_seconds: float,
) -> tuple[list[Measurement], list[QuantProblem]]:
    """Measurements, and the problems that the time did not suffice for."""
    start, measurements = time.perf_counter(), []
    for i, problem in enumerate(problems):
        if time.perf_counter() - start > limit_seconds:
            return measurements, list(problems[i:])
        try:
            found = measure(maker.make(problem), field.contenders, timer, PLAN)
        except RuntimeError as error:
            print(f"{problem}: the device gave up, nothing after it is measured: {first_line(error)}", file=sys.stderr)
            return measurements, list(problems[i:])
        measurements.append(found)
        for name, failure in found.failures.items():
            print(f"{problem}: {name} failed: {failure}", file=sys.stderr)
    return measurements, []


def method_record() -> dict[str, object]:
    """How the times were taken, for the reader of the JSON."""
    return {
        "rounds": PLAN.rounds,
        "rotated_bytes": ROTATED_BYTES,
        "data": "normal random bf16; outputs row-major, scales too but for packed ones",
        "bytes": "input, codes, scales, weights, zero points once each; a residual read and written",
        "copy": "1 GiB of bf16 copied by torch or by torch.abs, the faster; reads and writes counted",
        "ratio": "median over rounds of vllm / gemmill in the same round",
        "device_time": DEVICE_TIME,
        "host_time": f"loop of calls at M x hidden = {' x '.join(map(str, HOST_SHAPE))}, through the op's .default",
        "vllm": "its per-tensor op wants a scale that is zeroed before each call: that is not in its time",
    }


def report(record: dict, measurements: list[Measurement], field: QuantField, options: argparse.Namespace) -> None:
    """Write and print what was found."""
    gpu = (record["environment"]["gpu"] or "cpu").replace("NVIDIA ", "").replace(" ", "-").lower()
    stem = options.name or f"quant-{gpu}-{record['date'][:10]}"
    rows = [row_record(found, record["copy_gbps"]) for found in measurements]
    summary = summary_record(rows)
    path = options.out_dir / stem
    write_json(record | {"summary": summary, "rows": rows}, path.with_name(f"{stem}.json"))
    title = f"{record['environment']['gpu']}, {record['date'][:10]}"
    drawn = draw(rows, record["copy_gbps"], title, path.with_name(f"{stem}.svg"))
    print(table(rows, [contender.name for contender in field.contenders]))
    print(f"copying: {record['copy_gbps']:.0f} GB/s")
    print(summary_text(summary, record["host"]))
    if record["left_out"]:
        print(f"{len(record['left_out'])} problems left out, from {record['left_out'][0]} on")
    print(f"written: {path}.json" + (" and .svg" if drawn else "; no plot without matplotlib"))


if __name__ == "__main__":
    sys.exit(main())
