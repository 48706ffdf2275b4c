"""gemmill: a generator of quantised GEMM kernels for NVIDIA GPUs."""

__version__ = "0.1.0"
