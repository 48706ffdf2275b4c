"""GEMM + SwiGLU (+ quantise): columns of the product are gates and ups, and the kernel stores activation(gate) * up, as
values or as codes.
"""

NAME = "gated_mm"
