"""Weights made ready for kernels, on the host."""
