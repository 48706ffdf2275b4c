"""Weights made ready for kernels: quantised, reported on, packed."""

from gemmill.quantize.errors import LayerError, layer_error
from gemmill.quantize.rotation import fold_rotation
from gemmill.quantize.weights import WEIGHT_FORMATS, QuantizedWeight, quantize_weight

__all__ = ["WEIGHT_FORMATS", "LayerError", "QuantizedWeight", "fold_rotation", "layer_error", "quantize_weight"]
