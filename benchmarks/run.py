"""Time a family's ops side by side with the calls that a user would make instead, all families by one method.

    python benchmarks/run.py scaled_mm                                  # the shapes of the tables, all ops
    python benchmarks/run.py scaled_mm --op fp8 --models llama,qwen     # the layers of models, tensor-parallel 1, 2 and 4
    python benchmarks/run.py scaled_mm --op fp8_groups --deep-gemm .../deep_gemm --shapes ragged
    python benchmarks/run.py scaled_mm --by-backend --match t128x128x128
    python benchmarks/run.py scaled_mm --variants --limit-seconds 360   # every loaded variant, for choosing tables
    python benchmarks/run.py quant --op silu,rms_norm --shapes table,512x4096 --vllm-so .../_C_stable_libtorch.abi3.so
    python benchmarks/run.py quant --build A --also B,C                 # builds in turn
    python benchmarks/run.py quant --dry-run --out-dir /tmp/dry         # the whole program on a CPU, with invented times

Device time is that of a CUDA graph of 20 or more calls, operands rotated over copies that exceed L2 twice over, in rounds
that alternate between the contenders; medians are given. Host time of a call is a figure of its own. GB/s counts each byte
that must be read or written once, and is compared with the bandwidth of a copy in the same run.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from gemmill.numerics.measured import ROTATED_BYTES
from gemmill.tuner.device import now
from gemmill.tuner.protocol import first_line
from gemmill.tuner.timing import FEWEST_CALLS
from gemmill.writing import write_whole
from harness import devices
from harness.backends import backends_record, backends_text
from harness.contenders import FieldError
from harness.field import Contest, make_field
from harness.measuring import Measurement, measure
from harness.plot import drawn
from harness.results import (
    SCHEMA_VERSION,
    peers_record,
    row_record,
    sample_record,
    sides_record,
    summary_record,
    summary_text,
    table,
)
from harness.sweep import sweep_record, sweep_table
from harness.timers import DEVICE_TIME, DryTimer, GraphTimer, Rounds, Timer, of_this_gpu
from harness.written import write_json
from peers import PEERS
from timed import Workload, benchmark_of, families

RESULTS = Path(__file__).resolve().parent / "results"
COMPARISON = Rounds(rounds=9)
SWEEP = Rounds(rounds=5, short=True, give_up_ratio=1.5)
COPIED_ELEMENTS, DRY_ELEMENTS = 1 << 29, 1 << 12
"""Of 16 bits: 1 GiB is read, and as much written."""
DRY_ROTATED_BYTES = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code: 0, 1 where nothing could be timed, 2 where this machine or a library is not fit."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    benchmark, dry = benchmark_of(options.family), options.dry_run
    if not (dry or torch.cuda.is_available()):
        print("no GPU: nothing can be timed here; --dry-run runs the program without one", file=sys.stderr)
        return 2
    try:
        field = make_field(benchmark, options)
    except FieldError as error:
        print(error, file=sys.stderr)
        return 2
    for note in field.notes:
        print(note, file=sys.stderr)
    timer: Timer = DryTimer() if dry else GraphTimer()
    device = torch.device("cpu" if dry else "cuda")
    maker = benchmark.maker(device, DRY_ROTATED_BYTES if dry else ROTATED_BYTES)
    workloads = benchmark.workloads(options)
    if dry:
        workloads = list(dict.fromkeys(map(benchmark.tiny, workloads)))
    method = SWEEP if options.variants or options.by_backend else COMPARISON
    started = now()
    with of_this_gpu() as monitor:
        settled = warm_up(field, maker, timer, workloads[0], dry)
        copy_gbps = copy_bandwidth(timer, device, DRY_ELEMENTS if dry else COPIED_ELEMENTS)
        host = host_times(field, maker, timer, list(dict.fromkeys(p.kind for p in workloads)))
        record = {
            "schema_version": SCHEMA_VERSION,
            "program": f"benchmarks/run.py {options.family}",
            "kind": "backends" if options.by_backend else "sweep" if options.variants else "comparison",
            "dry_run": dry,
            "date": started,
            "commit": options.commit or devices.commit_of(RESULTS.parent),
            "build": field.build,
            "seed": getattr(options, "draw", None),
            "environment": devices.environment(),
            "settled_seconds": round(settled, 2),
            "copy_gbps": round(copy_gbps, 1),
            "method": method_record(method, field),
            "notes": list(field.notes),
            "host": host,
            "facts": benchmark.facts(field.loaded) if field.loaded is not None else {},
        }
        path = options.out_dir / (options.name or result_stem(options.family, record))
        measurements: list[Measurement] = []
        left_out = [str(workload) for workload in workloads]
        for found in measured(workloads, field, maker, timer, method, options.limit_seconds):
            measurements.append(found)
            left_out = [str(workload) for workload in workloads[len(measurements) :]]
            told = {"while_measuring": monitor.summary(), "left_out": left_out}
            whole = figures(record | told, measurements, field)
            indent = 1 if record["kind"] == "comparison" else None
            write_json(whole, path.with_name(f"{path.name}.json"), indent=indent)
        if not measurements:
            told = {"while_measuring": monitor.summary(), "left_out": left_out}
            write_json(figures(record | told, measurements, field), path.with_name(f"{path.name}.json"), indent=1)
            print(f"{len(left_out)} shapes left out, from {left_out[0]} on")
            return 1
    report = report_backends if options.by_backend else report_sweep if options.variants else report_comparison
    report(whole, measurements, field, path)
    if left_out:
        print(f"{len(left_out)} shapes left out, from {left_out[0]} on")
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Options from the command line: the family's own, its peers', and those of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=families())
    if not arguments or arguments[0] not in families():
        if {"-h", "--help"} & set(arguments):
            parser.parse_args(["--help"])
        parser.error(f"the family comes first, of {', '.join(families())}")
    benchmark = benchmark_of(arguments[0])
    benchmark.add_options(parser)
    for peer in PEERS:
        peer.add_options(parser)
    parser.add_argument("--build", help="build id or path; the current one by default")
    parser.add_argument("--also", default="", help="other builds to time beside it, with commas")
    parser.add_argument(
        "--batch-invariant", action="store_true", help="time the same calls under that contract beside it"
    )
    parser.add_argument(
        "--by-backend", action="store_true", help="one code generator against the other: every variant at every shape"
    )
    parser.add_argument("--variants", action="store_true", help="sweep: time every loaded variant at every shape")
    parser.add_argument("--alone", action="store_true", help="leave out gemmill's other ways of the same calls")
    parser.add_argument("--match", default="", help="sweep only variants whose name contains this")
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--name", help="file name of the results, without suffix")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="begin no shape after this long")
    parser.add_argument("--commit", help="commit to record, where this is no checkout")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU, invented times")
    options = parser.parse_args(arguments)
    if (options.variants or options.by_backend) and benchmark.variants is None:
        parser.error(f"{options.family} has one variant for each call: there is nothing to choose among")
    try:
        benchmark.workloads(options)
    except ValueError as error:
        parser.error(str(error))
    return options


def warm_up(field: Contest, maker: object, timer: Timer, workload: Workload, dry: bool) -> float:
    """Bring the clocks to where they stay; returns the seconds that took."""
    operands = maker.make(workload if dry else field.benchmark.warm_workload(workload))
    return timer.settle(field.subject.call(operands, 0))


def copy_bandwidth(timer: Timer, device: torch.device, elements: int) -> float:
    """GB/s of copying, reads and writes counted: the faster of torch's copy and an elementwise kernel."""
    a = torch.ones(elements, dtype=torch.bfloat16, device=device)
    b = torch.empty_like(a)
    times = []
    for call in (lambda: b.copy_(a), lambda: torch.abs(a, out=b)):
        prepared = timer.prepare([call], FEWEST_CALLS)
        times += [prepared.round() for _ in range(COMPARISON.rounds)]
        prepared.close()
    return 2 * a.numel() * a.element_size() / min(times) / 1e3


def host_times(field: Contest, maker: object, timer: Timer, kinds: Sequence[str]) -> dict[str, dict]:
    """Host time of one call of a small workload, by kind and contender."""
    times: dict[str, dict] = {}
    for kind in kinds:
        operands = maker.make(field.benchmark.host_workload(kind))
        times[kind] = {}
        for contender in (field.subject, *field.also, *field.peers):
            if not contender.takes(operands.workload):
                continue
            try:
                times[kind][contender.name] = sample_record(contender.host_us(operands, timer))
            except (RuntimeError, ValueError, TypeError) as error:
                print(f"{kind}: no host time of {contender.name}: {first_line(error)}", file=sys.stderr)
                timer.clear()
    return times


def measured(
    workloads: Sequence[Workload], field: Contest, maker: object, timer: Timer, method: Rounds, limit_seconds: float
) -> Iterator[Measurement]:
    """Of one workload after another, until the time is over or the device gives up."""
    start = time.perf_counter()
    for workload in workloads:
        if time.perf_counter() - start > limit_seconds:
            return
        try:
            found = measure(maker.make(workload), field.contenders(workload), timer, method)
        except RuntimeError as error:
            print(f"{workload}: the device gave up, nothing after it is measured: {first_line(error)}", file=sys.stderr)
            return
        for name, failure in found.failures.items():
            print(f"{workload}: {name} failed: {failure}", file=sys.stderr)
        yield found


def method_record(method: Rounds, field: Contest) -> dict[str, object]:
    """How the times were taken, for the reader of the JSON."""
    return {
        "rounds": method.rounds,
        "give_up_ratio": method.give_up_ratio,
        "rotated_bytes": ROTATED_BYTES,
        "data": field.benchmark.data,
        "copy": "1 GiB of bf16 copied by torch or by torch.abs, the faster; reads and writes counted",
        "device_time": DEVICE_TIME,
        "ratio": "median over rounds of peer / gemmill in the same round, against the peer for which it is least",
        "host_time": "loop of calls of a small workload, through the op's .default",
    }


def result_stem(family: str, record: dict) -> str:
    """File name of the results, without suffix: subject, device and date."""
    gpu = (record["environment"]["gpu"] or "cpu").replace("NVIDIA ", "").replace(" ", "-").lower()
    return f"{family}-{record['kind']}-{gpu}-{record['date'][:10]}"


def figures(record: dict, measurements: list[Measurement], field: Contest) -> dict:
    """The record with the figures of what has been measured."""
    if record["kind"] == "comparison":
        rows = [row_record(found, field.peers, record["copy_gbps"], field.also) for found in measurements]
        of_rows = {"summary": summary_record(rows), "peers": peers_record(rows), "sides": sides_record(rows)}
        return record | of_rows | {"rows": rows}
    compared = {}
    if record["kind"] == "backends":
        compared = backends_record(measurements, [variant.name for variant in field.variants])
    return record | compared | sweep_record(measurements)


def report_comparison(whole: dict, _: list[Measurement], field: Contest, path: Path) -> None:
    """Draw and print a comparison."""
    if svg := drawn(whole):
        write_whole(path.with_name(f"{path.name}.svg"), svg)
    print(table(whole["rows"], [contender.name for contender in field.all]))
    print(f"copying: {whole['copy_gbps']:.0f} GB/s")
    print(summary_text(whole["summary"], whole["peers"], whole["host"], whole["sides"]))
    if facts := whole["facts"]:
        print(facts)
    print(f"written: {path}.json" + (" and .svg" if svg else ""))


def report_sweep(_: dict, measurements: list[Measurement], field: Contest, path: Path) -> None:
    """Print a sweep."""
    peers = [contender.name for contender in field.peers if contender.complete]
    print(sweep_table(measurements, field.subject.name, [variant.name for variant in field.variants], peers))
    print(f"written: {path}.json")


def report_backends(whole: dict, _: list[Measurement], __: Contest, path: Path) -> None:
    """Print the figures of each code generator."""
    print(backends_text(whole))
    print(f"written: {path}.json")


if __name__ == "__main__":
    sys.exit(main())
