"""Host time that a QuantLinear adds to its ops, for each kind of weights and activations.

    python benchmarks/layer_time.py
    python benchmarks/layer_time.py --cpu --rounds 2 --calls 2 --out-dir /tmp/dry

Three sides take turns in one process. `ops` makes the layer's calls on existing tensors. `layer` is the layer's
call, which allocates its ops' outputs. `module` is a torch module that returns its input: the floor of any module.
Shapes are small, so that a loop of calls never waits for the device.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gemmill.nn import QuantLinear
from gemmill.nn.recipes import RECIPES
from gemmill.quantize import quantize_weight
from gemmill.tuner.device import now
from gemmill.tuner.timing import shuffled
from harness import devices
from harness.written import write_json

RESULTS = Path(__file__).resolve().parent / "results"
Call = Callable[[], object]
ROWS, N, K = 16, 256, 256


class Recording(TorchDispatchMode):
    """Records the calls of gemmill's ops within it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[object, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make the call, and note it if it is one of ours."""
        if func.namespace == "gemmill":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


class Module(nn.Module):
    """Hands its input back."""

    def forward(self, x: Tensor) -> Tensor:
        """x"""
        return x


def sides_of(format: str, activations: str, device: str) -> dict[str, Call]:
    """The calls that take turns. Raises RuntimeError where the build lacks a variant."""
    torch.manual_seed(0)
    weight, x = (torch.randn(*shape, device=device).bfloat16() for shape in ((N, K), (ROWS, K)))
    absmax = 5.0 if activations == "nvfp4" else None
    layer = QuantLinear(quantize_weight(weight, format), activations=activations, input_absmax=absmax)
    layer(x)
    with Recording() as recorded:
        layer(x)
    module = Module()
    return {"ops": _replayed(recorded.calls), "layer": lambda: layer(x), "module": lambda: module(x)}


def _replayed(calls: Sequence[tuple[Any, tuple[object, ...]]]) -> Call:
    """One or two calls, with nothing between that need not be."""
    (first, given), *more = calls
    if not more:
        return lambda: first(*given)
    ((second, given_second),) = more

    def both() -> None:
        first(*given)
        second(*given_second)

    return both


def us(call: Call, count: int, wait: Callable[[], object]) -> float:
    """Microseconds a call of the host."""
    wait()
    start = time.perf_counter()
    for _ in range(count):
        call()
    taken = time.perf_counter() - start
    wait()
    return taken / count * 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    options = parse(arguments)
    device = "cpu" if options.cpu else "cuda"
    wait: Callable[[], object] = bool if options.cpu else torch.cuda.synchronize
    kinds, left_out = {}, {}
    for format, activations in RECIPES:
        try:
            kinds[f"{format} x {activations}"] = sides_of(format, activations, device)
        except RuntimeError as error:
            left_out[f"{format} x {activations}"] = str(error).splitlines()[0]
    rounds = {kind: {side: list[float]() for side in sides} for kind, sides in kinds.items()}
    for turn in range(options.rounds + 1):
        for kind, sides in kinds.items():
            for side in shuffled(list(sides), turn):
                taken = us(sides[side], options.calls, wait)
                if turn:
                    rounds[kind][side].append(taken)
    record = {
        "schema_version": 1,
        "date": now(),
        "environment": devices.environment(),
        "commit": options.commit or devices.commit_of(Path(__file__).resolve().parents[1] / "generator"),
        "on_cpu": options.cpu,
        "calls": options.calls,
        "kinds": {kind: figures(taken) for kind, taken in rounds.items()},
        "left_out": left_out,
    }
    for kind, found in record["kinds"].items():
        print(
            f"{kind}: "
            + ", ".join(f"{name} {value:.2f}" for name, value in found["median_us"].items())
            + f"; adds {found['adds_us']:.2f}"
        )
    for kind, why in left_out.items():
        print(f"{kind}: left out, {why}")
    write_json(record, options.out_dir / f"{options.name}.json")
    return 0


def figures(taken: dict[str, list[float]]) -> dict[str, Any]:
    """Median times, and the median over the rounds of the layer's time beyond its ops'."""
    adds = [layer - ops for layer, ops in zip(taken["layer"], taken["ops"], strict=True)]
    return {
        "median_us": {side: round(median(found), 3) for side, found in taken.items()},
        "adds_us": round(median(adds), 3),
        "rounds_us": {side: [round(value, 3) for value in found] for side, found in taken.items()},
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21, help="kept; one more comes first")
    parser.add_argument("--calls", type=int, default=500, help="in a round")
    parser.add_argument("--cpu", action="store_true", help="call the references: for trying the program")
    parser.add_argument("--commit", help="of sources in no checkout")
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--name", default="layer-time", help="file name of the results, without suffix")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
