"""Captures the first launch of each kernel of a build in a CUDA graph, replays it, and prints faults as JSON.

`python -m gpu.first_capture [TEXT]`: only GEMM variants whose names contain TEXT.
"""

import json
import sys
from collections.abc import Callable

import torch

import gemmill
from families.scaled_mm.gpu.specs import MUST, acceptance, of_variant
from gemmill.families import scaled_mm
from gemmill.families.scaled_mm.accepts import accepted
from gemmill.families.scaled_mm.cases.calls import CallSpec, compare, make_call
from gemmill.runtime.schemas import OPS
from gemmill.vocab import Accumulation
from gpu.random_calls import calls_of

SHAPES = ((48, 264, 4096), (77, 136, 272), (16, 256, 512))
CALLS_OF_AN_OP = 60
DEVICE = torch.device("cuda")


def replayed(call: Callable[[], None]) -> None:
    """Capture a call, and make it by replaying the graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    torch.cuda.synchronize()


def first_of_all() -> list[str]:
    """A capture whose call also loads the build."""
    call = make_call(CallSpec(m=48, n=264, k=4096, data="integers"), DEVICE)
    replayed(lambda: torch.ops.gemmill.cutlass_scaled_mm.default(*call.arguments))
    comparison = compare(call, Accumulation.FAST)
    return [] if comparison.ok else [f"the first call of all: {comparison.report}"]


def of_variants(match: str) -> tuple[int, list[str]]:
    """Every GEMM variant, pinned; how many there are, and the faults."""
    count, faults = 0, []
    for entry in gemmill.variants():
        if entry.family != scaled_mm.NAME or match not in entry.name:
            continue
        specs = [of_variant(accepted(entry.config), CallSpec(m=m, n=n, k=k, data="integers")) for m, n, k in SHAPES]
        calls = [call for spec in specs if acceptance(accepted(entry.config), call := make_call(spec, DEVICE)) == MUST]
        if not calls:
            faults.append(f"{entry.name}: takes none of {SHAPES}")
            continue
        with gemmill.use_variant(entry.name):
            replayed(lambda: getattr(torch.ops.gemmill, calls[0].spec.op).default(*calls[0].arguments))  # noqa: B023
        count += 1
        comparison = compare(calls[0], Accumulation.FAST)
        if not comparison.ok or not calls[0].guards_hold():
            faults.append(f"{entry.name}: {comparison.report or 'bytes around its output changed'}")
    return count, faults


def of_ops() -> tuple[int, list[str]]:
    """Random calls of every op, each in a graph of its own."""
    count, faults = 0, []
    for op in OPS:
        for each in calls_of(op.name, 4, CALLS_OF_AN_OP, DEVICE):
            replayed(each.make)
            count += 1
            if fault := each.fault():
                faults.append(f"{each.call.op}: {fault}: {each.call}")
    return count, faults


def main() -> None:
    faults = first_of_all()
    count, wrong = of_variants(sys.argv[1] if len(sys.argv) > 1 else "")
    captured, more = of_ops()
    print(json.dumps({"captured": count + captured, "faults": faults + wrong + more}))


if __name__ == "__main__":
    main()
