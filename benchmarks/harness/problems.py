"""Which GEMMs are timed: named sets of (op, M, N, K)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import product


class Op(StrEnum):
    """What is computed; bf16 results in all of them."""

    FP8 = "fp8"
    """e4m3 x e4m3, a scale for each row of A and each column of B"""
    INT8 = "int8"
    """s8 x s8, the same scales"""
    INT8_AZP = "int8_azp"
    """s8 x s8 with a zero point for each row of A"""


@dataclass(frozen=True, kw_only=True, order=True)
class Problem:
    """D[m, n] = epilogue(A[m, k] B[k, n])."""

    op: Op
    n: int
    k: int
    m: int

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Operands and result, each counted once; scales are left out."""
        return self.m * self.k + self.n * self.k + 2 * self.m * self.n

    def __str__(self) -> str:
        return f"{self.op} {self.m} x {self.n} x {self.k}"


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
"""(M, N, K) that progress is judged by."""

SPLIT_N, SPLIT_K = 1, 0
"""The dimension of a weight that tensor parallelism divides: N of fused projections, K of the ones that follow."""

MODELS = {
    "llama-3-8b": ((4096, 6144, SPLIT_N), (4096, 4096, SPLIT_K), (4096, 28672, SPLIT_N), (14336, 4096, SPLIT_K)),
    "llama-3-70b": ((8192, 10240, SPLIT_N), (8192, 8192, SPLIT_K), (8192, 57344, SPLIT_N), (28672, 8192, SPLIT_K)),
    "qwen-2.5-7b": ((3584, 4608, SPLIT_N), (3584, 3584, SPLIT_K), (3584, 37888, SPLIT_N), (18944, 3584, SPLIT_K)),
    "qwen-2.5-32b": ((5120, 7168, SPLIT_N), (5120, 5120, SPLIT_K), (5120, 55296, SPLIT_N), (27648, 5120, SPLIT_K)),
    "mistral-7b": ((4096, 6144, SPLIT_N), (4096, 4096, SPLIT_K), (4096, 28672, SPLIT_N), (14336, 4096, SPLIT_K)),
}
"""The linear layers of a model as (K, N, divided dimension): QKV, attention output, gate and up, down."""

TENSOR_PARALLEL = (1, 2, 4)
MODEL_M = (1, 16, 64, 128, 512, 2048, 8192)
SWEEP_M = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
OPS_OF = {"fp8": (Op.FP8,), "int8": (Op.INT8, Op.INT8_AZP), "all": tuple(Op)}


def table_problems(ops: Iterable[Op]) -> list[Problem]:
    """The shapes that progress is judged by."""
    return [Problem(op=op, m=m, n=n, k=k) for op in ops for m, n, k in (FP8_TABLE if op is Op.FP8 else INT8_TABLE)]


def table_grid_problems(ops: Iterable[Op], m_values: Iterable[int]) -> list[Problem]:
    """Every weight of the tables at every M."""
    weights = sorted({(n, k) for _, n, k in FP8_TABLE + INT8_TABLE})
    return [Problem(op=op, m=m, n=n, k=k) for op, (n, k), m in product(ops, weights, m_values)]


def model_problems(names: Iterable[str], ops: Iterable[Op], m_values: Iterable[int]) -> list[Problem]:
    """The layers of the models whose names begin with one of `names`, for each degree of tensor parallelism."""
    weights = sorted({weight for name in names for weight in _weights_of(name)})
    return [Problem(op=op, m=m, n=n, k=k) for op, (n, k), m in product(ops, weights, m_values)]


def _weights_of(name: str) -> Iterator[tuple[int, int]]:
    models = [layers for model, layers in MODELS.items() if model.startswith(name)]
    if not models:
        raise ValueError(f"no model begins with {name!r}: there are {', '.join(MODELS)}")
    for layers, ways in product(models, TENSOR_PARALLEL):
        for k, n, split in layers:
            yield (n // ways, k) if split == SPLIT_N else (n, k // ways)


def parse_shapes(text: str, ops: Iterable[Op]) -> list[Problem]:
    """Problems of "MxNxK,MxNxK,...". Raises ValueError, naming the part that cannot be read."""
    problems = []
    for part in text.split(","):
        fields = part.strip().split("x")
        if len(fields) != 3 or not all(field.isdigit() and int(field) for field in fields):
            raise ValueError(f"shape {part.strip()!r} is not MxNxK, three positive numbers such as 16x4096x4096")
        m, n, k = map(int, fields)
        problems.extend(Problem(op=op, m=m, n=n, k=k) for op in ops)
    return problems


def tiny(problem: Problem) -> Problem:
    """The same problem cut down for a dry run on a CPU, its rows kept apart by their order of magnitude."""
    return Problem(op=problem.op, m=min(problem.m, 32), n=min(problem.n, 48), k=min(problem.k, 64))
