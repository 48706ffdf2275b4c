"""The epilogue of a sum whose scales apply elsewhere, or that has none."""

from gemmill.gemm.traced import Kind, Traced
from gemmill.gemm.tracing import Column, ColumnOut, Value, fma, trace


def alpha_bias(acc: Value, alpha: Column, bias: ColumnOut) -> Value:
    """alpha acc + bias"""
    return fma(alpha, acc, bias)


ALPHA_BIAS: Traced = trace(alpha_bias, Kind.F32)
