"""The cost of batch invariance: the fastest variant of the held order next to the free choice.

    python benchmarks/invariance.py --build BUILD --shapes 60 --seed 11 --name invariance-h200
    python benchmarks/invariance.py --classes fp8,bf16 --rows 1,16,64,128,512,4096 --weights 2048x16384
    python benchmarks/invariance.py --vllm-sources site-packages --classes bf16,fp8 --rows 1,16,256,4096 --weights 4096x4096
    python benchmarks/invariance.py --cpu --out-dir /tmp/dry

Shapes are those of the comparison (`timed/scaled_mm.py`), and for each class as many random ones as --shapes, of --seed, which no table
has. Device time is that of CUDA graphs of rotated weights, in rounds that alternate between both sides. Where both choose
the same variant the ratio is 1, and nothing is timed. Prints for each class, up to 128 rows and above: the geometric mean of the
ratios held / free, and the worst. The file is written again after each shape.

With --vllm-sources, a folder with files of its wheel, vLLM's batch-invariant kernels are timed in the same rounds (peers/vllm_invariant.py), after one
result of each was compared with the reference. For each of them the mean of its time / held is printed, and the least.

With --constant-weights the held order is timed once more under `gemmill.assume_constant_weights`, which lets kernels for few rows load
weights before the call before them has ended; peers have no such promise. The order and the bits are those of the held side.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

import gemmill
from gemmill.numerics.measured import ROTATED_BYTES, through
from gemmill.runtime.library import Build
from gemmill.runtime.select import Choice, select
from gemmill.tuner.device import now
from gemmill.tuner.workloads import Workload, tiny, workload_of
from harness import devices
from harness.contenders import Contender, FieldError, LocalContender, WrongResult
from harness.drawing import classes_of, drawings, drawn, held_weights
from harness.results import DECODE_ROWS
from harness.statistics import geometric_mean
from harness.timers import DEVICE_TIME, DryTimer, GraphTimer
from harness.written import write_json
from peers import vllm_invariant
from timed import benchmark_of
from timed.scaled_mm import BF16_TABLE, FP8_TABLE, GROUPS_TABLE

RESULTS = Path(__file__).resolve().parent / "results"
COMPARISON = {"fp8": FP8_TABLE, "fp8_groups": GROUPS_TABLE, "bf16": BF16_TABLE}
"""(M, N, K) by class; integer sums have one order, and no cost."""
SIDES = ("free", "held")
CONSTANT = "held, constant weights"
FEWEST, DRY_ROTATED_BYTES = 20, 4096


def shapes_of(op: str, told: argparse.Namespace, held: Sequence[Any]) -> list[Workload]:
    """The shapes of a class: the requested ones, else the comparison's and random ones, few rows first."""
    if told.weights:
        sizes = [(m, *map(int, weight.split("x"))) for weight in told.weights.split(",") for m in told.rows]
        return [workload_of(op, dict(zip("mnk", size, strict=True))) for size in sizes]
    compared = [workload_of(op, dict(zip("mnk", size, strict=True))) for size in COMPARISON.get(op, ())]
    return [*compared, *drawn(op, told.shapes, told.seed, held)]


def in_turns(lists: Sequence[list[Workload]]) -> Iterator[Workload]:
    """One of each class after the other, so that a run that is cut short says something of each."""
    for place in range(max(map(len, lists), default=0)):
        yield from (shapes[place] for shapes in lists if place < len(shapes))


def choices_of(build: Build, workload: Workload) -> dict[str, Choice]:
    """The choices of both sides for a call, on this device."""
    count = torch.cuda.get_device_properties(0).multi_processor_count
    found = {SIDES[0]: None, SIDES[1]: build.invariance}
    return {side: select(build.table, workload.call, count, None, invariance) for side, invariance in found.items()}


@contextmanager
def constant_weights(assumed: bool) -> Iterator[None]:
    """Capture calls that promise constant weights, or that do not."""
    gemmill.assume_constant_weights(assumed)
    try:
        yield
    finally:
        gemmill.assume_constant_weights(False)


def timed(
    operands: Any, timer: Any, rounds: int, fewest: int, sides: Sequence[str], peers: Sequence[Contender]
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Microseconds of gemmill's sides and of peers, round by round; and why peers cannot be timed. Raises WrongResult of gemmill's."""
    graphs: dict[str, Any] = {}
    refused: dict[str, str] = {}
    try:
        for side in sides:
            with gemmill.batch_invariant(side != "free"), constant_weights(side == CONSTANT):
                graphs[side] = LocalContender(name=side, bind=through(torch.ops.gemmill)).prepare(
                    operands, timer, fewest
                )
        for peer in peers:
            try:
                graphs[peer.name] = peer.prepare(operands, timer, fewest)
            except Exception as error:  # a compiler's among them
                timer.clear()
                refused[peer.name] = f"{type(error).__name__}: {error}".splitlines()[0]
        us: dict[str, list[float]] = {name: [] for name in graphs}
        for turn in range(rounds):
            for name in graphs if turn % 2 else reversed(graphs):
                us[name].append(graphs[name].round())
    finally:
        for graph in graphs.values():
            graph.close()
    return us, refused


def row_of(
    workload: Workload,
    build: Build | None,
    maker: Any,
    timer: Any,
    rounds: int,
    peers: Sequence[Contender] = (),
    constant: bool = False,
) -> dict[str, Any] | None:
    """The record of one shape, with `constant` of constant weights too; None where the build has no variant for it under either
    choice."""
    row: dict[str, Any] = {"op": workload.op, **workload.sizes}
    choices = {} if build is None else choices_of(build, workload)
    for side, choice in choices.items():
        row[side] = choice.entry and choice.entry.name
    held, sides = choices.get("held"), SIDES
    taken = [peer for peer in peers if peer.takes(workload)]
    if held is not None:
        row |= {"order": held.held and str(held.held.order), "expected": held.cost, "refused": held.refused}
        if row["free"] is None:
            return None
        if held.entry is None:
            return row
        if row["free"] == row["held"]:
            sides = SIDES[1:]
            row |= {"ratio": 1.0, "timed": False}
            if not taken and not constant:
                return row
    fewest = FEWEST if build is not None else 1
    promised = (CONSTANT,) if constant else ()
    us, refused = timed(maker.make(workload), timer, rounds, fewest, (*sides, *promised), taken)
    if len(sides) == 2:
        row |= {"ratio": _ratio(us["held"], us["free"]), "timed": True}
    ratios = {peer.name: _ratio(us[peer.name], us["held"]) for peer in taken if peer.name in us}
    if constant:
        ratios |= {name + CONSTANT.removeprefix("held"): _ratio(us[name], us[CONSTANT]) for name in ("held", *ratios)}
    return row | {"peers": ratios, "peers_refused": refused, "rounds_us": us}


def _ratio(us: Sequence[float], than: Sequence[float]) -> float:
    """The median over the rounds."""
    return round(median(time / other for time, other in zip(us, than, strict=True)), 4)


def peers_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each class and peer, few rows and many apart: its time over that of the held order, in the geometric mean, and
    where least."""
    found = []
    keys = dict.fromkeys((row["op"], name, row["m"] <= DECODE_ROWS) for row in rows for name in row.get("peers", ()))
    for op, name, few in keys:
        members = [
            row for row in rows if row["op"] == op and name in row.get("peers", ()) and (row["m"] <= DECODE_ROWS) is few
        ]
        least = min(members, key=lambda row: row["peers"][name])
        found.append(
            {
                "op": op,
                "peer": name,
                "side": f"M {'<=' if few else '>'} {DECODE_ROWS}",
                "shapes": len(members),
                "geometric_mean": round(geometric_mean([row["peers"][name] for row in members]) or 1.0, 4),
                "least": least["peers"][name],
                "least_shape": [least[size] for size in ("m", "n", "k")],
            }
        )
    return found


def summary_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each class, few rows and many apart: geometric mean of held / free, the worst shape, and how many have one variant."""
    found = []
    for op in dict.fromkeys(row["op"] for row in rows):
        for side, few in ((f"M <= {DECODE_ROWS}", True), (f"M > {DECODE_ROWS}", False)):
            members = [row for row in rows if row["op"] == op and (row["m"] <= DECODE_ROWS) is few and "ratio" in row]
            if not members:
                continue
            worst = max(members, key=lambda row: row["ratio"])
            mean = geometric_mean([row["ratio"] for row in members]) or 1.0
            found.append(
                {
                    "op": op,
                    "side": side,
                    "shapes": len(members),
                    "same_variant": sum(not row["timed"] for row in members),
                    "geometric_mean": round(mean, 4),
                    "worst": worst["ratio"],
                    "worst_shape": [worst[name] for name in ("m", "n", "k")],
                }
            )
    return found


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    families = [name for name in drawings() if benchmark_of(name).maker is not None]
    every = [op for name in families for op in classes_of(name)]
    parser.add_argument("--build")
    parser.add_argument("--classes", default=",".join(every), help="between commas; by default all that are drawn")
    parser.add_argument("--shapes", type=int, default=60, help="drawn shapes of each class")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--weights", default="", help="NxK between commas, at each of --rows, in place of all others")
    parser.add_argument(
        "--rows", type=lambda text: [int(m) for m in text.split(",")], default=[1, 16, 64, 128, 512, 4096]
    )
    parser.add_argument("--cpu", action="store_true", help="dry run: the reference, tiny shapes, and invented times")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--vllm-sources", type=Path, metavar="FOLDER", help="a folder that has files of vLLM 0.33.0's wheel"
    )
    parser.add_argument("--vllm-so", metavar="PATH", help="its _C_stable_libtorch.abi3.so, for CUTLASS kernels of FP8")
    parser.add_argument("--constant-weights", action="store_true", help="time the held order with that promise too")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin no shape after so many seconds")
    parser.add_argument("--commit", default="")
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--name", default="invariance")
    told = parser.parse_args(arguments)
    told.classes = told.classes.split(",")
    if unknown := [op for op in told.classes if op not in every]:
        parser.error(f"--classes {unknown[0]}: there are {', '.join(every)}")
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    """Time all shapes; returns the exit code: 1 where a call was refused or failed."""
    told = parsed(arguments)
    begun, build = time.monotonic(), None if told.cpu else gemmill.load(told.build)
    timer = DryTimer() if told.cpu else GraphTimer()
    device, rotated = (torch.device("cpu"), DRY_ROTATED_BYTES) if told.cpu else (torch.device("cuda"), ROTATED_BYTES)
    facts = {
        "program": "invariance",
        "date": now(),
        "commit": told.commit,
        "build": build and build.build_id,
        "seed": told.seed,
        "device_time": DEVICE_TIME,
        "environment": devices.environment(),
    }
    try:
        peers = vllm_invariant.contenders(told.vllm_sources, told.vllm_so) if told.vllm_sources else []
    except FieldError as error:
        print(error, file=sys.stderr)
        return 2
    makers: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    held = sorted(held_weights(()))
    for workload in in_turns([shapes_of(op, told, held) for op in told.classes]):
        if time.monotonic() - begun > told.limit_s:
            break
        if workload.family not in makers:
            makers[workload.family] = benchmark_of(workload.family).maker(device, rotated)
        shape = tiny(workload) if told.cpu else workload
        try:
            found = row_of(shape, build, makers[workload.family], timer, told.rounds, peers, told.constant_weights)
            if found is None:
                continue
            rows.append(found)
        except (RuntimeError, WrongResult, torch.OutOfMemoryError) as error:
            timer.clear()
            rows.append({"op": shape.op, **shape.sizes, "refused": str(error).splitlines()[0]})
        row = rows[-1]
        print(
            f"{shape}: {row.get('ratio', row.get('refused'))} {row.get('order', '')} {row.get('peers', '')}", flush=True
        )
        write_json(
            facts | {"summary": summary_of(rows), "peers": peers_of(rows), "rows": rows},
            told.out_dir / f"{told.name}.json",
        )
    for part in summary_of(rows):
        print(
            f"{part['op']} {part['side']}: held / free {part['geometric_mean']:.3f} in the geometric mean over {part['shapes']} shapes, "
            f"of which {part['same_variant']} have one variant; worst {part['worst']:.3f} at {part['worst_shape']}"
        )
    for part in peers_of(rows):
        print(
            f"{part['op']} {part['side']}: {part['peer']} / held {part['geometric_mean']:.3f} in the geometric mean over {part['shapes']} "
            f"shapes, least {part['least']:.3f} at {part['least_shape']}"
        )
    return 0 if rows and all("ratio" in row for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
