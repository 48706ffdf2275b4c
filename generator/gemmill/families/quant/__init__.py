"""Quantisation: rows of values to codes and scales, alone or after an activation or a norm, by hand-written kernels."""

NAME = "quant"
