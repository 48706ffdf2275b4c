"""Layers for the `kernelize` of Hugging Face's `kernels`: forward methods for layers of transformers that have FP8 weights.

They have the names of transformers' classes and no state of their own, as `kernelize` asks. An export for the Hub has them
as `layers`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from gemmill.nn import calls

_BLOCKS = [128, 128]


class FP8Linear(nn.Module):
    """The forward of transformers' FP8Linear: DeepSeek's checkpoints with `quant_method: fp8`."""

    can_torch_compile = True
    has_backward = False

    def forward(self, input: Tensor) -> Tensor:
        """The outputs [..., N] of input [..., K], bf16 or f16, for the layer's `weight` e4m3 [N, K] in blocks of 128 x 128.

        `weight_scale_inv` is f32 [N / 128, K / 128], or one value, where `block_size` is None. Raises ValueError for
        another block size, scales of another dtype than f32, and static activations. torch multiplies an unquantised
        weight.
        """
        return _fp8_linear(self, input)


class CompressedTensorsFP8Linear(nn.Module):
    """The forward of transformers' CompressedTensorsFP8Linear: FP8 checkpoints of compressed-tensors."""

    can_torch_compile = True
    has_backward = False

    def forward(self, input: Tensor) -> Tensor:
        """The outputs [..., N] of input [..., K], bf16 or f16, for the layer's `weight` e4m3 [N, K] and `weight_scale` f32 [1, N].

        Raises RuntimeError, in a sentence, for other shapes and dtypes.
        """
        return _rowwise(self, input, self.weight_scale)


def _fp8_linear(layer: Any, x: Tensor) -> Tensor:
    if layer.weight.element_size() > 1:
        return torch.nn.functional.linear(x, layer.weight, layer.bias)
    blocks = None if layer.block_size is None else list(layer.block_size)
    scales = layer.weight_scale_inv.detach()
    if blocks not in (None, _BLOCKS) or scales.dtype is not torch.float32 or layer.activation_scale is not None:
        found = (
            f"blocks {blocks}, scales {str(scales.dtype).removeprefix('torch.')}, {layer.activation_scheme} activations"
        )
        raise ValueError(
            f"gemmill's FP8Linear got {found}: it takes blocks {_BLOCKS} or None, scales float32 and dynamic activations; leave "
            "such layers to transformers by a condition of replace_kernel_forward_from_hub"
        )
    if blocks is None:
        return _rowwise(layer, x, scales.reshape(1))
    return _shaped(x, calls.block128(_rows(x), layer.weight.detach().t(), scales.t(), {}, _bias(layer, x)))


def _rowwise(layer: Any, x: Tensor, scales: Any) -> Tensor:
    """The product by a weight with a scale for each row, or one for all; quantises x per token."""
    weight = layer.weight.detach().t()
    return _shaped(x, calls.channel(_rows(x), weight, scales.detach(), {}, _bias(layer, x)))


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _shaped(x: Tensor, out: Tensor) -> Tensor:
    return out.reshape(*x.shape[:-1], out.shape[-1])


def _bias(layer: Any, x: Tensor) -> Tensor | None:
    return None if layer.bias is None else layer.bias.detach().to(x.dtype)
