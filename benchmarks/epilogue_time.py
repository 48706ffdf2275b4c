"""What an epilogue that a user wrote takes beside the built-in one that computes the same.

    gemmill build --epilogue epilogue_time:same_as_scaled_bias
    python benchmarks/epilogue_time.py --build BUILD

Both sides have the same tile, schedule and settings, pinned, for every such pair of variants in the build; then both are called
as they would be chosen. Device time is that of CUDA graphs of rotated weights, in rounds that alternate between the sides; host
time of a call is a figure of its own. Results must be equal to the bit first.
"""

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

import gemmill
from gemmill.epilogue import Column, ColumnOut, Row, Value, epilogue, fma
from gemmill.families.scaled_mm.own import OwnConfig
from gemmill.tuner.device import now
from harness import devices
from harness.timers import DEVICE_TIME, DryTimer, GraphTimer
from harness.written import write_json

RESULTS = Path(__file__).resolve().parent / "results"
SHAPES = ((1, 8192, 8192), (16, 8192, 8192), (64, 8192, 8192), (256, 4096, 14336), (4096, 8192, 8192))
ROTATED_BYTES = 200_000_000
SIDES = ("built-in", "user's")


@epilogue
def same_as_scaled_bias(acc: Value, a_scale: Row, b_scale: Column, bias: ColumnOut) -> Value:
    """s_a s_b acc + bias"""
    return fma(a_scale, acc * b_scale, bias)


def pairs_in(build: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """The schedule, and the names of both sides' variants with it."""
    by_tail: dict[str, dict[str, str]] = {}
    for entry in build.manifest.entries:
        config = entry.config
        if isinstance(config, OwnConfig) and config.problem.own == same_as_scaled_bias.traced.key:
            by_tail.setdefault(_tail(entry.name), {})[SIDES[1]] = entry.name
        elif "_cutedsl_e4m3_e4m3_f32_bf16_scaledbias_channel_" in entry.name:
            by_tail.setdefault(_tail(entry.name), {})[SIDES[0]] = entry.name
    yield from ((tail, names) for tail, names in by_tail.items() if len(names) == len(SIDES))


def _tail(name: str) -> str:
    return name.partition("_channel_")[2]


def sides_of(shape: tuple[int, int, int], device: str) -> dict[str, list[Callable[[], object]]]:
    """Calls that take turns through copies of the weights."""
    m, n, k = shape
    generator = torch.Generator(device=device).manual_seed(1)
    a = torch.randn(m, k, device=device, generator=generator).to(torch.float8_e4m3fn)
    copies = 1 if device == "cpu" else max(2, min(16, ROTATED_BYTES // (n * k)))
    weights = [torch.randn(n, k, device=device, generator=generator).to(torch.float8_e4m3fn).t() for _ in range(copies)]
    a_scale, b_scale = (torch.rand(*size, device=device, generator=generator) for size in ((m, 1), (1, n)))
    bias = torch.randn(n, device=device, generator=generator).bfloat16()
    outs = {side: torch.full((m, n), torch.nan, device=device, dtype=torch.bfloat16) for side in SIDES}
    ops = torch.ops.gemmill.cutlass_scaled_mm.default, getattr(torch.ops.gemmill, same_as_scaled_bias.name).default

    def call(side: int, b: torch.Tensor) -> Callable[[], object]:
        return lambda: ops[side](outs[SIDES[side]], a, b, a_scale, b_scale, bias)

    made = {name: [call(side, b) for b in weights] for side, name in enumerate(SIDES)}
    return made | {"outs": [lambda: list(outs.values())]}


@contextlib.contextmanager
def pinned(name: str | None) -> Iterator[None]:
    """With one variant pinned, or the choice."""
    with contextlib.nullcontext() if name is None else gemmill.use_variant(name):
        yield


def timed(
    shape: tuple[int, int, int], names: dict[str, str], rounds: int, device: str, fewest: int
) -> dict[str, Any] | None:
    """Medians of both sides, None where a variant does not take the shape."""
    sides = sides_of(shape, device)
    timer = DryTimer() if device == "cpu" else GraphTimer()
    graphs, host = {}, {}
    try:
        for side in SIDES:
            with pinned(names.get(side) if device != "cpu" else None):
                sides[side][0]()
                graphs[side] = timer.prepare(sides[side], fewest)
                host[side] = timer.host_us(sides[side][0])
    except RuntimeError as error:
        print(f"{shape}: {str(error).splitlines()[0][:160]}")
        return None
    first, second = sides["outs"][0]()  # type: ignore[misc]
    us: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        for side, graph in graphs.items():
            us[side].append(graph.round())
    for graph in graphs.values():
        graph.close()
    return {
        "equal": bool(torch.equal(first, second)),
        "us": {side: round(median(found), 3) for side, found in us.items()},
        "rounds_us": us,
        "host_us": {side: found.median_us for side, found in host.items()},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Time all pairs; returns the exit code: 1 where a result differs or there is no pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build")
    parser.add_argument("--cpu", action="store_true", help="dry run: the reference, and invented times")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--commit", default="")
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--name", default="epilogue-time")
    told = parser.parse_args(arguments)
    device = "cpu" if told.cpu else "cuda"
    shapes = ((3, 32, 64),) if told.cpu else SHAPES
    if told.cpu:
        pairs = [("as chosen", {})]
    else:
        build = gemmill.load(told.build)
        pairs = [*pairs_in(build), ("as chosen", {})]
    facts = {
        "program": "epilogue_time",
        "date": now(),
        "commit": told.commit,
        "device_time": DEVICE_TIME,
        "environment": devices.environment(),
    }
    rows: list[dict[str, Any]] = []
    for shape in shapes:
        for schedule, names in pairs:
            few = "swapab" in schedule
            if names and few != (shape[0] <= 64):
                continue
            found = timed(shape, names, told.rounds, device, 1 if told.cpu else 20)
            if found is None:
                continue
            rows.append({"m": shape[0], "n": shape[1], "k": shape[2], "schedule": schedule, **found})
            ours, theirs = (found["us"][side] for side in reversed(SIDES))
            equal = "equal" if found["equal"] else "DIFFERENT"
            print(f"{shape} {theirs:9.2f} {ours:9.2f} us, {ours / theirs:.3f}, {equal}, {schedule}", flush=True)
            write_json(facts | {"rows": rows}, told.out_dir / f"{told.name}.json")
    return 0 if len(rows) and all(row["equal"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
