"""Which GEMMs are timed: named sets of (op, M, N, K), and who computes them."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence

import torch

from gemmill.families.scaled_mm import NAME
from gemmill.families.scaled_mm.sweep import SWEEP, MeasuredOp
from gemmill.numerics.cases import cases_of_family
from gemmill.numerics.measured import through
from gemmill.registry import REGISTRY
from gemmill.runtime.library import Build
from gemmill.tuner.models import layers_of, named_models
from gemmill.tuner.workloads import Workload, grid, tiny, workload_of
from harness import stand_in
from harness.contenders import (
    LocalContender,
    constant_weights_contender,
    ops_contender,
    plausible,
    variant_contenders,
)
from harness.selection import selection_us
from timed import Benchmark, Drawing

OPS_OF = {
    "fp8": (MeasuredOp.FP8,),
    "int8": (MeasuredOp.INT8, MeasuredOp.INT8_AZP),
    "fp8_groups": (MeasuredOp.FP8_GROUPS,),
    "fp8_groups_32": (MeasuredOp.FP8_GROUPS_32,),
    "bf16": (MeasuredOp.BF16,),
    "all": tuple(MeasuredOp),
}

FP8_TABLE = (
    (1, 4096, 4096),
    (16, 4096, 4096),
    (16, 8192, 8192),
    (64, 8192, 8192),
    (128, 8192, 8192),
    (16, 1280, 8192),
    (16, 6144, 4096),
    (16, 28672, 4096),
    (16, 4096, 14336),
    (16, 8192, 28672),
    (512, 8192, 8192),
    (2048, 8192, 8192),
    (4096, 4096, 4096),
    (4096, 8192, 8192),
    (8192, 8192, 8192),
    (8192, 28672, 4096),
    (4096, 1280, 8192),
    (8192, 8192, 28672),
)
INT8_TABLE = ((16, 8192, 8192), (128, 8192, 8192), (2048, 8192, 8192), (8192, 8192, 8192), (2048, 4096, 14336))
GROUPS_TABLE = (
    (16, 7168, 2048),
    (16, 4096, 7168),
    (16, 24576, 1536),
    (16, 7168, 16384),
    (16, 8192, 8192),
    (64, 8192, 8192),
    (128, 7168, 16384),
    (512, 7168, 16384),
    (2048, 4096, 7168),
    (2048, 8192, 8192),
    (4096, 7168, 2048),
    (4096, 4096, 7168),
    (4096, 24576, 1536),
    (4096, 7168, 16384),
)
GROUPS_32_TABLE = tuple(
    (m, n, k)
    for n, k in ((1280, 5120), (8192, 4096), (25600, 6144), (5120, 1024), (576, 5120))
    for m in (1, 16, 64, 512, 4096)
)
"""DeepSeek V4.1's dense layers."""
BF16_TABLE = (
    (16, 8192, 8192),
    (128, 8192, 8192),
    (512, 8192, 8192),
    (2048, 8192, 8192),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
)
"""(M, N, K) by which progress is measured."""

TABLES = {
    MeasuredOp.FP8: FP8_TABLE,
    MeasuredOp.INT8: INT8_TABLE,
    MeasuredOp.INT8_AZP: INT8_TABLE,
    MeasuredOp.FP8_GROUPS: GROUPS_TABLE,
    MeasuredOp.FP8_GROUPS_32: GROUPS_32_TABLE,
    MeasuredOp.BF16: BF16_TABLE,
}

RAGGED_M = (3, 17, 61, 77, 127, 130, 1001, 4093)
RAGGED_WEIGHTS = ((7168, 2048), (4096, 7168))
RAGGED_STEP = 64
"""With scales in groups, M that no TMA of A's scales takes, and the next multiple of this: the cost of raggedness."""

MODELS = ("llama-3-8b", "llama-3-70b", "qwen-2.5-7b", "qwen-2.5-32b", "mistral-7b")
"""Of gemmill's named models, those whose layers are compared."""

TENSOR_PARALLEL = (1, 2, 4)
MODEL_M = (1, 16, 64, 128, 512, 2048, 8192)
SWEEP_M = SWEEP.steps


DRAWN_STEPS, DRAWN_GROUPS_STEPS = (16, 16), (64, 128)
"""N and K of random shapes are multiples of it; with scales in groups vLLM gives DeepGEMM no other weights."""


def gemm(*, op: str, m: int, n: int, k: int) -> Workload:
    """D[m, n] = epilogue(A[m, k] B[k, n])."""
    return workload_of(op, {"m": m, "n": n, "k": k})


def table_workloads(ops: Iterable[MeasuredOp]) -> list[Workload]:
    """The shapes by which progress is measured."""
    return [gemm(op=op, m=m, n=n, k=k) for op in ops for m, n, k in TABLES[op]]


def ragged_workloads() -> list[Workload]:
    """Ragged M with scales in groups, each next to the next whole one."""
    m_values = {m for ragged in RAGGED_M for m in (ragged, next_whole(ragged))}
    return [gemm(op=MeasuredOp.FP8_GROUPS, m=m, n=n, k=k) for n, k in RAGGED_WEIGHTS for m in sorted(m_values)]


def next_whole(m: int) -> int:
    """The next multiple of RAGGED_STEP."""
    return -(-m // RAGGED_STEP) * RAGGED_STEP


def table_grid_workloads(ops: Iterable[MeasuredOp], m_values: Iterable[int]) -> list[Workload]:
    """Every weight of an op's tables at every M."""
    m_values = tuple(m_values)
    return [p for op in ops for p in grid([op], _by_name(_table_weights(op)), m_values)]


def _by_name(weights: Iterable[tuple[int, int]]) -> list[dict[str, int]]:
    return [{"n": n, "k": k} for n, k in weights]


def _table_weights(op: MeasuredOp) -> set[tuple[int, int]]:
    own_table = op.groups is not None or op is MeasuredOp.BF16
    shapes = TABLES[op] if own_table else FP8_TABLE + INT8_TABLE
    return {(n, k) for _, n, k in shapes}


def model_workloads(names: Iterable[str], ops: Iterable[MeasuredOp], m_values: Iterable[int]) -> list[Workload]:
    """The layers of the models whose names begin with one of `names`, for each degree of tensor parallelism."""
    weights = {
        (layer.n, layer.k)
        for name in names
        for model in _models_of(name)
        for ways in TENSOR_PARALLEL
        for layer in layers_of(named_models()[model], ways)
    }
    return grid(ops, _by_name(weights), tuple(m_values))


def _models_of(name: str) -> list[str]:
    found = [model for model in MODELS if model.startswith(name)]
    if not found:
        raise ValueError(f"no model begins with {name!r}: there are {', '.join(MODELS)}")
    return found


def parse_shapes(text: str, ops: Iterable[MeasuredOp]) -> list[Workload]:
    """Workloads of "MxNxK,MxNxK,...". Raises ValueError, naming the part that cannot be read."""
    workloads = []
    for part in text.split(","):
        fields = part.strip().split("x")
        if len(fields) != 3 or not all(field.isdigit() and int(field) for field in fields):
            raise ValueError(f"shape {part.strip()!r} is not MxNxK, three positive numbers such as 16x4096x4096")
        m, n, k = map(int, fields)
        workloads.extend(gemm(op=op, m=m, n=n, k=k) for op in ops)
    return workloads


HOST_SHAPE = (16, 128, 128)
WARM_UP_M = 512
PLAUSIBLE = 2.5
"""Variants that the analytic model puts beyond this many times its best are not timed."""


def add_options(parser: ArgumentParser) -> None:
    """Of the GEMMs alone."""
    parser.add_argument("--op", default="all", help=f"of {', '.join(OPS_OF)}, with commas")
    parser.add_argument(
        "--shapes",
        help='"table" (default), "grid" (the table\'s weights at every M), "ragged" (M of any number, scales in groups), '
        "or MxNxK,MxNxK",
    )
    parser.add_argument(
        "--models", help="layers of llama, qwen, mistral (any beginning of a model's name), with commas"
    )
    parser.add_argument("--m", help="values of M for --models and grid, with commas")


def workloads_of(options: Namespace) -> list[Workload]:
    """The workloads asked for, those that share weights together. Raises ValueError."""
    ops = ops_named(options.op)
    m_values = numbers(options.m) if options.m else (SWEEP_M if options.variants else MODEL_M)
    shapes = options.shapes or ("" if options.models else "grid" if options.variants else "table")
    workloads = model_workloads(options.models.split(","), ops, m_values) if options.models else []
    if shapes == "table":
        workloads += table_workloads(ops)
    elif shapes == "ragged":
        workloads += ragged_workloads()
    elif shapes == "grid":
        workloads += table_grid_workloads(ops, m_values)
    elif shapes:
        workloads += parse_shapes(shapes, ops)
    return sorted(set(workloads))


def ops_named(text: str) -> tuple[MeasuredOp, ...]:
    """The classes of calls of names with commas. Raises ValueError."""
    for name in text.split(","):
        if name not in OPS_OF:
            raise ValueError(f"--op {name!r} is none of {', '.join(OPS_OF)}")
    return tuple(dict.fromkeys(op for name in text.split(",") for op in OPS_OF[name]))


def numbers(text: str) -> tuple[int, ...]:
    """Positive numbers with commas. Raises ValueError."""
    if not all(part.strip().isdigit() and int(part) for part in text.split(",")):
        raise ValueError(f"--m {text!r} is not a list of positive numbers such as 1,16,64")
    return tuple(int(part) for part in text.split(","))


def host_workload(kind: str) -> Workload:
    """So small that the host takes the time."""
    (m, n, k), op = HOST_SHAPE, MeasuredOp(kind)
    return gemm(op=op, m=m, n=n, k=k if op.groups is None else 2 * op.groups.size)


def variants(build: Build | None) -> Sequence[LocalContender]:
    """Those of a build, or of the smoke selection in a dry run."""
    if build is None:
        return stand_in.variants(NAME)
    return variant_contenders(build.table, through(torch.ops.gemmill), NAME)


BENCHMARK = Benchmark(
    add_options=add_options,
    workloads=workloads_of,
    tiny=tiny,
    host_workload=host_workload,
    warm_workload=lambda p: workload_of(p.op, p.sizes | {"m": max(p.step, WARM_UP_M)}),
    maker=cases_of_family(REGISTRY.named(NAME)).measured,
    data="uniform random: e4m3 and bf16 in [-1, 1], s8 in [-128, 127]",
    subject=ops_contender,
    also=lambda: [constant_weights_contender()],
    variants=variants,
    plausible=lambda variants, workload: plausible(variants, workload, PLAUSIBLE),
    facts=lambda build: {"selection_us": selection_us(build)},
    drawing=Drawing(
        classes=(MeasuredOp.FP8, MeasuredOp.BF16, MeasuredOp.FP8_GROUPS, MeasuredOp.INT8),
        kin=lambda op: (MeasuredOp(op).operand, MeasuredOp(op).groups),
        code_bytes=lambda op: MeasuredOp(op).operand.bits / 8,
        steps=lambda op: DRAWN_STEPS if MeasuredOp(op).groups is None else DRAWN_GROUPS_STEPS,
    ),
)
