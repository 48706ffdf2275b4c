"""Which block-scaled GEMMs are timed: classes of calls at (M, N, K)."""

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

import torch

from gemmill.families.blockscaled import NAME
from gemmill.families.blockscaled.sweep import SWEEP, MeasuredOp
from gemmill.numerics.cases import cases_of_family
from gemmill.numerics.measured import through
from gemmill.registry import REGISTRY
from gemmill.runtime.library import Build
from gemmill.tuner.workloads import Workload, grid, tiny, workload_of
from harness import stand_in
from harness.contenders import (
    LocalContender,
    constant_weights_contender,
    ops_contender,
    plausible,
    variant_contenders,
)
from timed import Benchmark, Drawing

OPS_OF = {
    "weights": (MeasuredOp.NVFP4_BF16, MeasuredOp.MXFP4_BF16),
    "pairs": (MeasuredOp.NVFP4, MeasuredOp.MXFP4, MeasuredOp.MXFP8, MeasuredOp.MXFP8_MXFP6, MeasuredOp.MXFP8_MXFP4),
    "all": tuple(MeasuredOp),
} | {op.value: (op,) for op in MeasuredOp}
WEIGHTS = ((8192, 8192), (4096, 14336), (28672, 4096))
"""(N, K) by which progress is measured."""
TABLE_M = (1, 16, 32, 64, 256, 1024, 4096)
HOST_SHAPE, WARM_UP_M = (16, 128, 256), 512
DRAWN_STEP = 16
"""N and K of random shapes are multiples of it, K of the format's group too."""
PLAUSIBLE = 4.0
"""Variants that the analytic model, which is not fitted, puts beyond this many times its best are not timed."""


def add_options(parser: ArgumentParser) -> None:
    """Of the block-scaled GEMMs alone."""
    parser.add_argument("--op", default="all", help=f"of {', '.join(OPS_OF)}, with commas")
    parser.add_argument("--shapes", default="table", help='"table" (default) or MxNxK,MxNxK')
    parser.add_argument("--m", help="values of M for the table's weights, with commas")


def workloads_of(options: Namespace) -> list[Workload]:
    """The workloads asked for, those that share weights together. Raises ValueError."""
    names = options.op.split(",")
    if unknown := [name for name in names if name not in OPS_OF]:
        raise ValueError(f"--op {unknown[0]!r} is none of {', '.join(OPS_OF)}")
    ops = tuple(dict.fromkeys(op for name in names for op in OPS_OF[name]))
    if options.shapes == "table":
        steps = numbers(options.m) if options.m else SWEEP.steps if options.variants else TABLE_M
        return sorted(set(grid(ops, [{"n": n, "k": k} for n, k in WEIGHTS], steps)))
    shapes = [numbers(part.replace("x", ",")) for part in options.shapes.split(",")]
    if any(len(shape) != 3 for shape in shapes):
        raise ValueError(f"--shapes {options.shapes!r}: a shape is MxNxK, three positive numbers such as 16x4096x4096")
    return sorted({gemm(op, *shape) for op in ops for shape in shapes})


def numbers(text: str) -> tuple[int, ...]:
    """Positive numbers with commas. Raises ValueError."""
    if not all(part.strip().isdigit() and int(part) for part in text.split(",")):
        raise ValueError(f"{text!r} is not a list of positive numbers such as 1,16,64")
    return tuple(map(int, text.split(",")))


def gemm(op: str, m: int, n: int, k: int) -> Workload:
    """D[m, n] = A[m, k] B[n, k]."""
    return workload_of(op, {"m": m, "n": n, "k": k})


def variants(build: Build | None) -> Sequence[LocalContender]:
    """Those of a build, or of the smoke selection in a dry run."""
    if build is None:
        return stand_in.variants(NAME)
    return variant_contenders(build.table, through(torch.ops.gemmill), NAME)


BENCHMARK = Benchmark(
    add_options=add_options,
    workloads=workloads_of,
    tiny=tiny,
    host_workload=lambda kind: gemm(kind, *HOST_SHAPE),
    warm_workload=lambda p: workload_of(p.op, p.sizes | {"m": max(p.step, WARM_UP_M)}),
    maker=cases_of_family(REGISTRY.named(NAME)).measured,
    data="normal random numbers in their formats, random scales",
    subject=ops_contender,
    also=lambda: [constant_weights_contender()],
    variants=variants,
    plausible=lambda variants, workload: plausible(variants, workload, PLAUSIBLE),
    drawing=Drawing(
        classes=(
            MeasuredOp.NVFP4_BF16,
            MeasuredOp.MXFP4_BF16,
            MeasuredOp.MXFP4_E4M3,
            MeasuredOp.NVFP4,
            MeasuredOp.MXFP8,
        ),
        kin=lambda op: MeasuredOp(op),
        code_bytes=lambda op: MeasuredOp(op).pair.b_format.bytes_per_value,
        steps=lambda op: (DRAWN_STEP, math.lcm(DRAWN_STEP, MeasuredOp(op).pair.b_format.group)),
    ),
)
