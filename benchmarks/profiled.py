"""Where the time of a GEMM goes, in hardware counters: gemmill's choice and cuBLAS, or cuSPARSELt where weights are 2:4 sparse.

    python benchmarks/profiled.py --seed 7 --shapes 6                   # needs Nsight Compute's ncu and its permissions
    python benchmarks/profiled.py --shape bf16:1366x656x33232 --name one
    python benchmarks/profiled.py --shape e4m3_2to4:5456x18560x11520 --name sparse
    python benchmarks/profiled.py --seed 7 --dry-run --out-dir /tmp/dry

Drawn shapes have few tiles and a long K. Each kernel runs once under ncu, after warm-up, with caches flushed and clocks left alone. cuBLAS multiplies e4m3 with one scale for
each tensor, as torch._scaled_mm does, and bf16 as torch.mm does. The record has each kernel's name, launch and counters; the printed
table puts both sides next to each other. Counters serialise kernels and replay them, so times here explain and are no figures.
"""

import argparse
import csv
import io
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import gemmill
from gemmill.tuner.device import now
from harness import devices
from harness.results import SCHEMA_VERSION
from harness.written import write_json
from timed.sparse_mm.calls import KINDS, SparseMaker
from timed.sparse_mm.contenders import SparseContender, cusparselt

RESULTS = Path(__file__).resolve().parent / "results"
METRICS = {
    "us": "gpu__time_duration.sum",
    "ctas": "launch__grid_size",
    "waves": "launch__waves_per_multiprocessor",
    "cluster": "launch__cluster_size",
    "shared_bytes": "launch__shared_mem_per_block",
    "registers": "launch__registers_per_thread",
    "sm_active": "sm__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "tensor": "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed",
    "tensor_active": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "l2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_bytes": "lts__t_bytes.sum",
    "dram": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_bytes": "dram__bytes.sum",
    "sm_hz": "sm__cycles_elapsed.avg.per_second",
}
"""Counters by the name that the record gives them; percentages are of the peak over the kernel's whole time."""
PEERS = {"e4m3": "cublas", "bf16": "cublas", "e4m3_2to4": "cusparselt", "bf16_2to4": "cusparselt"}
"""The side next to gemmill, by the operands' dtype and the pattern of the weights."""
MARK = "FillFunctor"
"""In the name of the kernel that stands between two calls."""
WARM_UP = 3


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A product of [m, k] and [k, n]."""

    dtype: str
    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.dtype}:{self.m}x{self.n}x{self.k}"


def shape_of(text: str) -> Shape:
    """The Shape that `text` names, such as e4m3:200x1024x16384. Raises argparse.ArgumentTypeError."""
    dtype, _, sizes = text.partition(":")
    numbers = sizes.split("x")
    if dtype not in PEERS or len(numbers) != 3 or not all(number.isdigit() for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape: expected {':MxNxK, '.join(PEERS)}:MxNxK")
    m, n, k = map(int, numbers)
    return Shape(dtype=dtype, m=m, n=n, k=k)


def drawn(seed: int, count: int) -> list[Shape]:
    """So many shapes of each dtype: 100 to 1,500 rows, N of 700 to 4,000, K of 10,000 to 40,000, log-uniform."""
    dice = random.Random(f"profiled {seed}")

    def between(least: int, most: int, multiple: int) -> int:
        return max(multiple, round(least * (most / least) ** dice.random() / multiple) * multiple)

    sizes = [(between(100, 1500, 1), between(700, 4000, 16), between(10_000, 40_000, 16)) for _ in range(count)]
    return [Shape(dtype=dtype, m=m, n=n, k=k) for dtype in ("e4m3", "bf16") for m, n, k in sizes]


def calls_of(shape: Shape) -> dict[str, Callable[[], object]]:
    """A call of each side on operands of its own, uniform in [-1, 1]; sparse ones are those of `run.py sparse_mm`."""
    if PEERS[shape.dtype] == "cusparselt":
        return sparse_calls_of(shape)
    a, b = (torch.rand(rows, shape.k, device="cuda").mul_(2).sub_(1) for rows in (shape.m, shape.n))
    if shape.dtype == "bf16":
        a, b = a.bfloat16(), b.bfloat16()
        out = torch.empty(shape.m, shape.n, dtype=torch.bfloat16, device="cuda")
        one = torch.ones(1, device="cuda")
        return {
            "cublas": lambda: torch.mm(a, b.t(), out=out),
            "gemmill": lambda: torch.ops.gemmill.cutlass_scaled_mm(out, a, b.t(), one, one, None),
        }
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    rows, columns = torch.rand(shape.m, 1, device="cuda"), torch.rand(1, shape.n, device="cuda")
    one = torch.ones((), device="cuda")
    return {
        "cublas": lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True),
        "gemmill": lambda: gemmill.cutlass_scaled_mm(a, b.t(), rows, columns, torch.bfloat16),
    }


def sparse_calls_of(shape: Shape, device: str = "cuda") -> dict[str, Callable[[], object]]:
    """The same of 2:4 sparse weights; cuSPARSELt searches its algorithm first."""
    kind = KINDS["fp8" if shape.dtype.startswith("e4m3") else "bf16"]
    operands = SparseMaker(torch.device(device), 1).make(kind.at(m=shape.m, n=shape.n, k=shape.k))
    subject = SparseContender(name="gemmill", namespace="gemmill")
    return {"cusparselt": cusparselt(operands, 0), "gemmill": subject.call(operands, 0)}


def run_calls(shapes: Sequence[Shape]) -> None:
    """Call both sides once at each shape while counters are on, after warm-up, a marking kernel before each call."""
    mark = torch.zeros(1, device="cuda")
    for shape in shapes:
        for call in calls_of(shape).values():
            for _ in range(WARM_UP):
                call()
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            mark.fill_(1)
            call()
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


def kernels_of(text: str) -> Iterator[list[dict[str, Any]]]:
    """The kernels of each call, from ncu's raw CSV. Lines of others before it are left out."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        raise ValueError(f"it printed no table, but: {text[-600:]}")
    found: list[dict[str, Any]] | None = None
    for row in csv.DictReader(io.StringIO("\n".join(line for line in lines[begin:] if line.startswith('"')))):
        if not row["ID"]:  # units
            units = row
            continue
        if MARK in row["Kernel Name"]:
            if found is not None:
                yield found
            found = []
        elif found is not None:
            found.append({"kernel": row["Kernel Name"], **_counters(row, units)})
    if found is not None:
        yield found


_FACTORS = {"": 1, "us": 1, "usecond": 1, "ns": 1e-3, "nsecond": 1e-3, "ms": 1e3, "msecond": 1e3}
_PREFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def _counters(row: dict[str, str], units: dict[str, str]) -> dict[str, float]:
    found = {}
    for name, metric in METRICS.items():
        text = (row.get(metric) or "").replace(",", "")
        unit = units.get(metric) or ""
        try:
            value = float(text)
        except ValueError:
            continue
        scale = _FACTORS.get(unit) or _PREFIXES.get(unit[:1], 1)
        found[name] = round(value * scale, 3)
    return found


def profiled(shapes: Sequence[Shape], ncu: str) -> list[dict[str, Any]]:
    """A row for each shape and side. Raises ValueError where ncu did not measure, with its message."""
    command = [ncu, "--csv", "--page", "raw", "--clock-control", "none", "--profile-from-start", "off"]
    command += ["--metrics", ",".join(METRICS.values()), sys.executable, __file__, "--calls", *map(str, shapes)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = list(kernels_of(ended.stdout))
    except ValueError as error:
        raise ValueError(f"{error} {ended.stderr[-600:]}") from None
    if len(found) != 2 * len(shapes):
        raise ValueError(f"ncu counted {len(found)} of {2 * len(shapes)} calls: {ended.stderr[-600:]}")
    sides = [(shape, side) for shape in shapes for side in (PEERS[shape.dtype], "gemmill")]
    return [
        {"shape": str(shape), "side": side, "kernels": kernels}
        for (shape, side), kernels in zip(sides, found, strict=True)
    ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Both sides of each shape, a line a kernel."""
    columns = ("us", "ctas", "waves", "cluster", "sm_active", "tensor", "tensor_active", "l2", "dram")
    head = f"{'shape':<30}{'side':<11}" + "".join(f"{name:>14}" for name in columns)
    lines = [
        f"{row['shape']:<30}{row['side']:<11}"
        + "".join(f"{kernel.get(name, float('nan')):>14.1f}" for name in columns)
        + f"  {kernel['kernel'][:110]}"
        for row in rows
        for kernel in row["kernels"]
    ]
    return "\n".join([head, *lines])


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the shapes")
    parser.add_argument("--shapes", type=int, default=6, help="of each dtype")
    parser.add_argument(
        "--shape", type=shape_of, action="append", default=[], help="dtype:MxNxK; in place of drawn ones"
    )
    parser.add_argument("--ncu", default=shutil.which("ncu") or "ncu", help="Nsight Compute's program")
    parser.add_argument("--out-dir", type=Path, default=RESULTS, help="folder of the JSON file")
    parser.add_argument("--name", default="profiled", help="of the JSON file, without its ending")
    parser.add_argument("--commit", default=devices.commit_of(Path(__file__).parent), help="what is measured")
    parser.add_argument("--dry-run", action="store_true", help="print the shapes and the program's call, count nothing")
    parser.add_argument("--calls", type=shape_of, nargs="+", default=[], help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code: 0, or 2 where nothing could be counted."""
    options = parse(arguments)
    if options.calls:
        run_calls(options.calls)
        return 0
    shapes = options.shape or drawn(options.seed, options.shapes)
    if options.dry_run:
        print("\n".join(map(str, shapes)))
        return 0
    try:
        rows = profiled(shapes, options.ncu)
    except (OSError, ValueError) as error:
        print(f"{options.ncu} did not count: {error}", file=sys.stderr)
        return 2
    record = {
        "schema_version": SCHEMA_VERSION,
        "date": now(),
        "commit": options.commit,
        "environment": devices.environment(),
        "metrics": METRICS,
        "rows": rows,
    }
    write_json(json.loads(json.dumps(record)), options.out_dir / f"{options.name}.json")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
