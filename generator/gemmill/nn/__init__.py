"""Layers of quantised weights: made, calibrated, offloaded. Caches of compressed keys and values."""

from gemmill.nn.calibration import Calibration
from gemmill.nn.compressed_cache import CompressedKVCache
from gemmill.nn.linear import QuantLinear
from gemmill.nn.model import load_linears, quantize_module
from gemmill.nn.offload import Block, FileBlock, InTurns, load_packed, save_packed

__all__ = [
    "Block",
    "Calibration",
    "CompressedKVCache",
    "FileBlock",
    "InTurns",
    "QuantLinear",
    "load_linears",
    "load_packed",
    "quantize_module",
    "save_packed",
]
