"""What is measured: one class of calls at one shape."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from gemmill.families import scaled_mm
from gemmill.families.scaled_mm.accepts import SCALED_MM, SCALED_MM_AZP, Predicate
from gemmill.families.scaled_mm.classes import Need, problem_code, scales_code
from gemmill.families.scaled_mm.tuning import TUNING
from gemmill.family import ProblemCall
from gemmill.vocab import SCALE_GROUPS, DType, ScaleGroups

TMA_BYTES = 16
M_BUCKETS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Rows of A at which weights are measured unless told otherwise; a row of a table serves up to its M."""


class Op(StrEnum):
    """What is computed; bf16 results in all of them."""

    FP8 = "fp8"
    """e4m3 x e4m3, a scale for each row of A and each column of B"""
    INT8 = "int8"
    """s8 x s8, the same scales"""
    INT8_AZP = "int8_azp"
    """s8 x s8 with a zero point for each row of A"""
    FP8_GROUPS = "fp8_groups"
    """e4m3 x e4m3, a scale for each 1 x 128 of A, M-major and padded to 16 bytes, and for each 128 x 128 of B"""
    BF16 = "bf16"
    """bf16 x bf16, both scales 1: the plain product, to compare with"""

    @property
    def operand(self) -> DType:
        """Dtype of A and B."""
        return _OPERANDS[self]

    @property
    def groups(self) -> ScaleGroups | None:
        """The groups that scales come in; None where they are for rows and columns."""
        return SCALE_GROUPS[0] if self is Op.FP8_GROUPS else None

    @property
    def code(self) -> int:
        """The class of calls, as selection knows it."""
        need = Need.AZP_TOKEN if self is Op.INT8_AZP else Need.SCALE
        scales = scales_code(self.groups, mn_major=True)
        return problem_code(need, self.operand.torch_name, DType.BF16.torch_name, scales)


_OPERANDS = {
    Op.FP8: DType.E4M3,
    Op.INT8: DType.S8,
    Op.INT8_AZP: DType.S8,
    Op.FP8_GROUPS: DType.E4M3,
    Op.BF16: DType.BF16,
}


@dataclass(frozen=True, kw_only=True, order=True)
class Problem:
    """D[m, n] = epilogue(A[m, k] B[k, n])."""

    op: Op
    n: int
    k: int
    m: int

    @property
    def kind(self) -> str:
        """What is computed, in a word."""
        return self.op.value

    @property
    def sizes(self) -> dict[str, int]:
        """By name, the rows first."""
        return {name: getattr(self, name) for name in TUNING.sizes}

    @property
    def weights(self) -> dict[str, int]:
        """Those that a row of a table must match nearly."""
        return {name: getattr(self, name) for name in TUNING.near}

    @property
    def step(self) -> int:
        """The size at which weights are measured in steps."""
        return self.sizes[TUNING.bucketed]

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Operands and result, each counted once; scales are left out."""
        return (self.m + self.n) * self.k * self.element_bytes + 2 * self.m * self.n

    @property
    def element_bytes(self) -> int:
        """Of one element of an operand."""
        return self.op.operand.bits // 8

    @property
    def call(self) -> ProblemCall:
        """The call with operands as torch allocates them: dense, at multiples of 16 bytes."""
        align_k, align_d = math.gcd(self.element_bytes * self.k, TMA_BYTES), math.gcd(2 * self.n, TMA_BYTES)
        one = TMA_BYTES
        return ProblemCall(
            family=scaled_mm.NAME,
            problem=self.op.code,
            sizes=TUNING.ordered(self.sizes),
            alignments=(one if self.m == 1 else align_k, one if self.n == 1 else align_k, align_d),
        )

    def __str__(self) -> str:
        return f"{self.op} {self.shape}"

    @property
    def shape(self) -> str:
        """Its sizes as the family lists them."""
        return " x ".join(map(str, TUNING.ordered(self.sizes)))


def ops_of(predicate: Predicate) -> tuple[Op, ...]:
    """The measured classes that a variant can serve."""
    if predicate.scale_groups is not None:
        served = predicate.scale_groups == Op.FP8_GROUPS.groups and predicate.a_dtype is Op.FP8_GROUPS.operand
        return (Op.FP8_GROUPS,) if served else ()
    ops: list[Op] = []
    if SCALED_MM in predicate.ops:
        ops += [op for op in (Op.FP8, Op.INT8, Op.BF16) if op.operand is predicate.a_dtype]
    if SCALED_MM_AZP in predicate.ops and "token" in predicate.azp:
        ops.append(Op.INT8_AZP)
    return tuple(ops)


def grid(ops: Iterable[Op], weights: Iterable[tuple[int, int]], m_values: Sequence[int]) -> list[Problem]:
    """Every (n, k) for every op at every M, those that share weights beside each other."""
    return [Problem(op=op, m=m, n=n, k=k) for op, (n, k), m in product(ops, sorted(set(weights)), m_values)]


def tiny(problem: Problem) -> Problem:
    """The same problem cut down for a dry run on a CPU, its rows kept apart by their order of magnitude."""
    # In groups along K there are at least two: one alone is a scale for each row.
    least = 0 if problem.op.groups is None else 2 * problem.op.groups.size
    return Problem(op=problem.op, m=min(problem.m, 32), n=min(problem.n, 48), k=min(problem.k, max(64, least)))
