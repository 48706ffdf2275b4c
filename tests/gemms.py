"""Measured classes of the GEMMs at sizes."""

from gemmill.families.scaled_mm.sweep import Op
from gemmill.tuner.problems import Problem, problem_of

__all__ = ["Op", "Problem", "gemm"]


def gemm(*, op: str, m: int, n: int, k: int) -> Problem:
    """D[m, n] = epilogue(A[m, k] B[k, n])."""
    return problem_of(op, {"m": m, "n": n, "k": k})
