"""Weights made ready for kernels: quantised, reported on, packed."""

from gemmill.quantize.errors import LayerError, layer_error
from gemmill.quantize.sparsity import ExpertError, prune_to_fp4, pruned
from gemmill.quantize.weights import WEIGHT_FORMATS, QuantizedWeight, quantize_weight

__all__ = [
    "WEIGHT_FORMATS",
    "ExpertError",
    "LayerError",
    "QuantizedWeight",
    "layer_error",
    "prune_to_fp4",
    "pruned",
    "quantize_weight",
]
