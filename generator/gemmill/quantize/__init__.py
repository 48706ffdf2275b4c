"""Weights made ready for kernels: quantised, reported on, packed."""

from gemmill.quantize.errors import LayerError, layer_error
from gemmill.quantize.experts import PackedExperts, prepack_experts
from gemmill.quantize.gate_up import PackedGateUp, prepack_gate_up
from gemmill.quantize.rotation import fold_rotation
from gemmill.quantize.sparsity import ExpertError, prune_to_fp4, pruned
from gemmill.quantize.weights import WEIGHT_FORMATS, QuantizedWeight, quantize_weight

__all__ = [
    "WEIGHT_FORMATS",
    "ExpertError",
    "LayerError",
    "PackedExperts",
    "PackedGateUp",
    "QuantizedWeight",
    "fold_rotation",
    "layer_error",
    "prepack_experts",
    "prepack_gate_up",
    "prune_to_fp4",
    "pruned",
    "quantize_weight",
]
