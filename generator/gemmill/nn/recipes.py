"""The computation of a layer: by format of the weights and of the activations, the tensors to pack once and the ops to
call.

A recipe has three parts. `pack` makes the tensors that its ops read, by name. `operands` makes the weight and its
scales as the ops take them. `run` gives x [M, K] to the ops (`calls.py`).
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.formats.folded_blocks import LEAST_SHIFT, LISTED, NVFP4_BIAS
from gemmill.formats.fp4_blocks import BITS, SCALE_BYTES
from gemmill.formats.layout import BLOCK_COLUMNS, ROW_BYTES, SIDE, STAGE_COLUMNS, TILE_BYTES, TILE_ROWS, TILE_SCALES
from gemmill.formats.quantise import LARGEST_PRODUCT, BlockScaled, swizzle
from gemmill.nn import calls
from gemmill.quantize.folded_blocks import to_folded_blocks
from gemmill.quantize.fp4_blocks import to_blocks
from gemmill.quantize.packed_rows import to_rows
from gemmill.quantize.prepack import prepack
from gemmill.quantize.weights import ASYMMETRIC, BLOCK_SCALED, BLOCKS, QuantizedWeight
from gemmill.vocab.format import MXFP4, MXFP8

_NUMBERS = (
    SIDE,
    STAGE_COLUMNS,
    BLOCK_COLUMNS,
    ROW_BYTES,
    TILE_BYTES,
    TILE_ROWS,
    TILE_SCALES,
    LISTED,
    LEAST_SHIFT,
    NVFP4_BIAS,
)
PACKING = hashlib.sha256(json.dumps([1, BITS, SCALE_BYTES, *_NUMBERS]).encode()).hexdigest()[:12]
"""A digest of the orders in which kernels read weights. The first number changes with the results of `pack`."""


NAMES = ("weight", "weight_scale", "alpha", "input_global_scale", "zero_points")
"""A layer's names for the tensors that recipes pack."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One way to compute a layer."""

    pack: Callable[[QuantizedWeight], dict[str, Tensor]]
    run: calls.Run
    operands: Callable[[Tensor, Tensor], calls.Pair] = calls.as_they_are
    """The operands of the ops, from the tensors `weight` and `weight_scale`."""
    calibrated: bool = False
    """Whether the range of inputs must be known."""
    inputs: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)
    """The dtypes that x may have."""


def _rowwise(weight: QuantizedWeight) -> dict[str, Tensor]:
    """Codes as they are, scales [N] and zero points [N]."""
    tensors = {"weight": weight.codes, "weight_scale": weight.scales.reshape(-1)}
    return tensors if weight.zero_points is None else tensors | {"zero_points": weight.zero_points.reshape(-1)}


def _whole_groups(weight: QuantizedWeight) -> dict[str, Tensor]:
    size = BLOCKS[weight.format][1]
    if weight.k % size:
        raise ValueError(
            f"{weight.format} multiplies activations in groups of {size} columns, and the layer has K = {weight.k}: use 'channel', "
            f"or pad K to {-(-weight.k // size) * size}"
        )
    return {"weight": weight.codes, "weight_scale": weight.scales}


def _block_scaled(weight: QuantizedWeight) -> BlockScaled:
    return BlockScaled(format=BLOCK_SCALED[weight.format], codes=weight.codes.view(torch.uint8), scales=weight.scales)


def _blocks(weight: QuantizedWeight) -> dict[str, Tensor]:
    """The weight in the order of Hopper's kernel for 4-bit weights."""
    packed = to_blocks(prepack(_block_scaled(weight), for_op="fp4_weight_mm"))
    tensors = {"weight": packed.blocks, "weight_scale": packed.base}
    return tensors if weight.global_scale is None else tensors | {"alpha": 1 / weight.global_scale}


def _rows(weight: QuantizedWeight) -> dict[str, Tensor]:
    """The weight with codes and scales of a row side by side."""
    rows, base = to_rows(prepack(_block_scaled(weight), for_op="fp4_weight_mm"))
    return {"weight": rows, "weight_scale": base}


def _folded(op: str) -> Callable[[QuantizedWeight], dict[str, Tensor]]:
    """The weight in the order of Hopper's FP8 kernel for 4-bit weights. mxfp4 folds exactly or raises, nvfp4 rounds."""

    def fold(weight: QuantizedWeight) -> dict[str, Tensor]:
        packed = to_folded_blocks(prepack(_block_scaled(weight), for_op=op, global_scale=weight.global_scale))
        return {"weight": packed.blocks, "weight_scale": packed.base}

    return fold


def _swizzled(weight: QuantizedWeight) -> dict[str, Tensor]:
    """The weight with codes as they are and scales swizzled.

    alpha is 1. For nvfp4 it is 1 / global scale until the input's is known.
    """
    ones = torch.ones(1, device=weight.codes.device, dtype=torch.float32)
    alpha = ones if weight.global_scale is None else 1 / weight.global_scale
    return {"weight": weight.codes, "weight_scale": swizzle(weight.scales), "alpha": alpha}


_MXFP4_MXFP8, _MXFP6_MXFP8 = "cutlass_scaled_mxfp4_mxfp8_mm", "cutlass_scaled_mxfp6_mxfp8_mm"
RECIPES = {
    ("channel", "e4m3"): Recipe(pack=_rowwise, run=calls.channel, operands=calls.transposed),
    ("int8", "int8"): Recipe(pack=_rowwise, run=calls.int8, operands=calls.transposed),
    (ASYMMETRIC, "int8"): Recipe(pack=_rowwise, run=calls.int8_asymmetric, operands=calls.transposed),
    ("block128", "e4m3"): Recipe(pack=_whole_groups, run=calls.block128, operands=calls.both_transposed),
    ("block32", "e4m3"): Recipe(pack=_whole_groups, run=calls.block32, operands=calls.both_transposed),
    ("group128", "e4m3"): Recipe(pack=_whole_groups, run=calls.group128, operands=calls.both_transposed),
    ("nvfp4", "bf16"): Recipe(pack=_blocks, run=calls.weights_of("nvfp4"), inputs=(torch.bfloat16,)),
    ("nvfp4", "e4m3"): Recipe(
        pack=_folded("nvfp4_fp8_mm_rounded"), run=calls.by_fp8("nvfp4_fp8_mm_rounded", calls.UNPACKED_FROM)
    ),
    ("nvfp4", "nvfp4"): Recipe(pack=_swizzled, run=calls.nvfp4, calibrated=True),
    ("mxfp4", "bf16"): Recipe(pack=_blocks, run=calls.weights_of("mxfp4"), inputs=(torch.bfloat16,)),
    ("mxfp4", "e4m3"): Recipe(pack=_folded("mxfp4_fp8_mm"), run=calls.by_fp8("mxfp4_fp8_mm")),
    ("mxfp4", "mxfp4"): Recipe(pack=_swizzled, run=calls.mx(MXFP4, "cutlass_scaled_mxfp4_mm")),
    ("mxfp4", "mxfp8"): Recipe(pack=_swizzled, run=calls.mx(MXFP8, _MXFP4_MXFP8)),
    ("mxfp6", "mxfp8"): Recipe(pack=_swizzled, run=calls.mx(MXFP8, _MXFP6_MXFP8)),
    ("mxfp6", "bf16"): Recipe(pack=_rows, run=calls.weights_of("mxfp6")),
    ("mxfp8", "mxfp8"): Recipe(pack=_swizzled, run=calls.mx(MXFP8, "cutlass_scaled_mxfp8_mm")),
    ("mxfp8", "bf16"): Recipe(pack=_rows, run=calls.weights_of("mxfp8")),
}
"""Recipes by format of weights and activations. The first of a format is its default."""


def recipe_of(format: str, activations: str | None) -> tuple[str, Recipe]:
    """The activations, and the recipe of the layer. Raises ValueError with the activations that a format has."""
    known = [a for f, a in RECIPES if f == format]
    if not known:
        raise ValueError(
            f"there is no layer of format {format!r}: the formats are {', '.join(dict.fromkeys(f for f, _ in RECIPES))}"
        )
    activations = known[0] if activations is None else activations
    if activations not in known:
        raise ValueError(f"{format} weights take activations {' or '.join(known)}, got {activations!r}")
    return activations, RECIPES[format, activations]


def of_input(absmax: Tensor | float, alpha: Tensor) -> dict[str, Tensor]:
    """nvfp4's global scale of the input, 2688 / absmax, and alpha of both. `alpha` is the weight's."""
    largest = torch.as_tensor(absmax, dtype=torch.float32, device=alpha.device).reshape(1)
    if not bool(torch.isfinite(largest) & (largest > 0)):
        raise ValueError(
            f"the input's absmax is {float(largest)}, expected a finite number above zero: calibrate on real inputs"
        )
    scale = LARGEST_PRODUCT / largest
    return {"input_global_scale": scale, "alpha": alpha / scale}
