"""Weights made ready for kernels: quantisation, reports, packing.

One function each quantises a tensor, a module or a checkpoint.

Type checkers read the names from `__init__.pyi`.
"""

from importlib import import_module

from gemmill.quantize.block_folding import PrepackedBlocks, folding_share, prepack_blocks
from gemmill.quantize.errors import LayerError, layer_error
from gemmill.quantize.experts import PackedExperts, PackedGatedExperts, prepack_experts, prepack_gated_experts
from gemmill.quantize.gate_up import PackedGateUp, PackedGateUpExperts, prepack_gate_up, prepack_gate_up_experts
from gemmill.quantize.rotation import fold_rotation
from gemmill.quantize.sparsity import ExpertError, prune_to_fp4, pruned
from gemmill.quantize.weights import WEIGHT_FORMATS, QuantizedWeight, quantize_weight

__all__ = [
    "WEIGHT_FORMATS",
    "ExpertError",
    "LayerError",
    "PackedExperts",
    "PackedGateUp",
    "PackedGateUpExperts",
    "PackedGatedExperts",
    "PrepackedBlocks",
    "QuantizedWeight",
    "fold_rotation",
    "folding_share",
    "layer_error",
    "prepack_blocks",
    "prepack_experts",
    "prepack_gate_up",
    "prepack_gate_up_experts",
    "prepack_gated_experts",
    "prune_to_fp4",
    "pruned",
    "quantize_checkpoint",
    "quantize_module",
    "quantize_weight",
]
_ABOVE = {"quantize_checkpoint": "gemmill.checkpoints.convert", "quantize_module": "gemmill.nn.model"}
"""Functions of higher layers, imported at their first use."""


def __getattr__(name: str) -> object:
    if name not in _ABOVE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ABOVE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_ABOVE})
