"""Measured classes of the GEMMs at sizes."""

from gemmill.families.scaled_mm.sweep import MeasuredOp
from gemmill.tuner.workloads import Workload, workload_of

__all__ = ["MeasuredOp", "Workload", "gemm"]


def gemm(*, op: str, m: int, n: int, k: int) -> Workload:
    """D[m, n] = epilogue(A[m, k] B[k, n])."""
    return workload_of(op, {"m": m, "n": n, "k": k})
