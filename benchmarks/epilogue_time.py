"""The time of a traced epilogue next to the standard one of the same arithmetic.

    gemmill build --epilogue epilogue_time:same_as_scaled_bias
    python benchmarks/epilogue_time.py --build BUILD
    python benchmarks/epilogue_time.py --build BUILD --of zero_points

The first compares one that a user wrote with that of cutlass_scaled_mm. The second compares scaled_mm_zero_points, given all its
vectors, with cutlass_scaled_mm_azp, in which sums of rows and zero points of weights have the places of zero points and sums.

Both sides have the same tile, schedule and settings, pinned, for every such pair of variants in the build; then both are called
as they would be chosen. Device time is that of CUDA graphs of rotated weights, in rounds that alternate between the sides; host
time of a call is a figure of its own. Results must be equal to the bit first.
"""

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

import gemmill
from gemmill.epilogue import Column, ColumnOut, Row, Value, epilogue, fma
from gemmill.families.scaled_mm.own import BUILT_IN, OwnConfig
from gemmill.tuner.device import now
from harness import devices
from harness.timers import DEVICE_TIME, DryTimer, GraphTimer
from harness.written import write_json

RESULTS = Path(__file__).resolve().parent / "results"
SHAPES = ((1, 8192, 8192), (16, 8192, 8192), (64, 8192, 8192), (256, 4096, 14336), (4096, 8192, 8192))
ROTATED_BYTES = 200_000_000
SIDES = ("standard", "traced")


@epilogue
def same_as_scaled_bias(acc: Value, a_scale: Row, b_scale: Column, bias: ColumnOut) -> Value:
    """s_a s_b acc + bias"""
    return fma(a_scale, acc * b_scale, bias)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """An epilogue, and the standard one."""

    standard: str
    """The part of a name by which the standard one's variants are found."""
    key: str
    """The key of the traced one."""
    dtype: torch.dtype
    calls: Callable[[dict[str, torch.Tensor]], tuple[list[Any], list[Any]]]
    """The op and its arguments after out, a and b, of both sides, from the vectors of a call."""


def _scaled_bias(v: dict[str, torch.Tensor]) -> tuple[list[Any], list[Any]]:
    given = [v["a_scale"], v["b_scale"], v["bias"]]
    ops = torch.ops.gemmill
    return [ops.cutlass_scaled_mm.default, *given], [getattr(ops, same_as_scaled_bias.name).default, *given]


def _zero_points(v: dict[str, torch.Tensor]) -> tuple[list[Any], list[Any]]:
    scales, ops = [v["a_scale"], v["b_scale"]], torch.ops.gemmill
    given = [v["rows"], v["columns"], torch.zeros_like(v["columns"]), v["rows"], v["bias"]]
    return (
        [ops.cutlass_scaled_mm_azp.default, *scales, v["columns"], v["rows"], v["bias"]],
        [ops.scaled_mm_zero_points.default, *scales, *given],
    )


COMPARED = {
    "scaled_bias": Compared(
        standard="_cutedsl_e4m3_e4m3_f32_bf16_scaledbias_channel_",
        key=same_as_scaled_bias.traced.key,
        dtype=torch.float8_e4m3fn,
        calls=_scaled_bias,
    ),
    "zero_points": Compared(
        standard="_s8_s8_s32_bf16_scaledazppertoken_channel_",
        key=next(key for key in BUILT_IN if key.startswith("scaledmmzeropoints")),
        dtype=torch.int8,
        calls=_zero_points,
    ),
}


def pairs_in(build: Any, of: Compared) -> Iterator[tuple[str, dict[str, str]]]:
    """Backend and schedule, and the names of both sides' variants with these."""
    by_tail: dict[str, dict[str, str]] = {}
    for entry in build.manifest.entries:
        config, tail = entry.config, entry.name.partition("_channel_")[2]
        if isinstance(config, OwnConfig) and config.own == of.key and config.operands.out_dtype == "bf16":
            by_tail.setdefault(f"{config.backend} {tail}", {})[SIDES[1]] = entry.name
        elif of.standard in entry.name and not isinstance(config, OwnConfig):
            by_tail.setdefault(f"{config.backend} {tail}", {})[SIDES[0]] = entry.name
    yield from ((tail, names) for tail, names in by_tail.items() if len(names) == len(SIDES))


def _codes(rows: int, k: int, of: Compared, generator: torch.Generator) -> torch.Tensor:
    device = generator.device
    if of.dtype is torch.int8:
        return torch.randint(-128, 128, (rows, k), dtype=torch.int8, device=device, generator=generator)
    return torch.randn(rows, k, device=device, generator=generator).to(of.dtype)


def sides_of(shape: tuple[int, int, int], of: Compared, device: str) -> dict[str, list[Callable[[], object]]]:
    """Calls that take turns through copies of the weights."""
    m, n, k = shape
    generator = torch.Generator(device=device).manual_seed(1)
    a = _codes(m, k, of, generator)
    copies = 1 if device == "cpu" else max(2, min(16, ROTATED_BYTES // (n * k)))
    weights = [_codes(n, k, of, generator).t() for _ in range(copies)]
    vectors = {
        "a_scale": torch.rand(m, 1, device=device, generator=generator),
        "b_scale": torch.rand(1, n, device=device, generator=generator),
        "bias": torch.randn(n, device=device, generator=generator).bfloat16(),
        "rows": torch.randint(-9999, 9999, (m,), dtype=torch.int32, device=device, generator=generator),
        "columns": torch.randint(-128, 128, (n,), dtype=torch.int32, device=device, generator=generator),
    }
    outs = {side: torch.full((m, n), torch.nan, device=device, dtype=torch.bfloat16) for side in SIDES}

    def call(side: str, op: Any, given: list[Any], b: torch.Tensor) -> Callable[[], object]:
        return lambda: op(outs[side], a, b, *given)

    both = zip(SIDES, of.calls(vectors), strict=True)
    made = {side: [call(side, op, given, b) for b in weights] for side, (op, *given) in both}
    return made | {"outs": [lambda: list(outs.values())]}


@contextlib.contextmanager
def pinned(name: str | None) -> Iterator[None]:
    """With one variant pinned, or the choice."""
    with contextlib.nullcontext() if name is None else gemmill.use_variant(name):
        yield


def timed(
    shape: tuple[int, int, int], of: Compared, names: dict[str, str], rounds: int, device: str, fewest: int
) -> dict[str, Any] | None:
    """Medians of both sides, None where a variant does not take the shape."""
    sides = sides_of(shape, of, device)
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
    parser.add_argument("--of", choices=tuple(COMPARED), default="scaled_bias", help="which epilogue")
    parser.add_argument("--cpu", action="store_true", help="dry run: the reference, and invented times")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--commit", default="")
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--name", default="epilogue-time")
    told = parser.parse_args(arguments)
    device, of = "cpu" if told.cpu else "cuda", COMPARED[told.of]
    shapes = ((3, 32, 64),) if told.cpu else SHAPES
    if told.cpu:
        pairs = [("as chosen", {})]
    else:
        build = gemmill.load(told.build)
        pairs = [*pairs_in(build, of), ("as chosen", {})]
    facts = {
        "program": "epilogue_time",
        "of": told.of,
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
            found = timed(shape, of, names, told.rounds, device, 1 if told.cpu else 20)
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
