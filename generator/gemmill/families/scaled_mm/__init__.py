"""Scaled GEMM: matrices of codes, multiplied, scaled and shifted, by CUTLASS's kernels, the CuTe DSL's and hand-written
ones."""

NAME = "scaled_mm"
