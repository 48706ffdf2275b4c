"""What a call of a layer does: x [M, K] is quantised and multiplied, by ops that are bound once.

The functions of `gemmill` would do the same. Here nothing stands between a layer and its ops: what the host does for a call of a few
microseconds is seen. A weight and its scales come as the ops take them, other tensors of the layer by name. A bias is [N], of x's dtype.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gemmill.formats.layout import TILE_ROWS, TILE_SCALES
from gemmill.quantize.weights import BLOCK
from gemmill.runtime.ops import overload
from gemmill.vocab import Format
from gemmill.vocab.format import MXFP4, MXFP8

Tensors = Mapping[str, Tensor | None]
Pair = tuple[Tensor, Tensor]
Run = Callable[[Tensor, Tensor, Tensor, Tensors, Tensor | None], Tensor]
"""x, the weight, its scales, the layer's tensors and its bias to the result."""
New = Callable[[int, int, torch.dtype], Tensor]
"""An empty tensor [rows, columns]."""
_EMPTY: Callable[..., Tensor] | None = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
"""What torch's own compiled code allocates with, on the current GPU: sizes, strides, dtype. A later torch may lack it."""

E4M3, F32 = torch.float8_e4m3fn, torch.float32
_E4M3_MAX = 448.0
_EPS = 1e-10
_FP8_QUANT, _INT8_QUANT = overload("dynamic_per_token_scaled_fp8_quant"), overload("dynamic_scaled_int8_quant")
_GROUP_QUANT, _NVFP4_QUANT = overload("per_token_group_fp8_quant"), overload("scaled_nvfp4_quant")
_SCALED_MM, _WEIGHT_MM = overload("cutlass_scaled_mm"), overload("fp4_weight_mm")
_NVFP4_MM = overload("cutlass_scaled_nvfp4_mm")


def as_they_are(weight: Tensor, scales: Tensor) -> Pair:
    """Operands that ops take as they are stored."""
    return weight, scales


def transposed(weight: Tensor, scales: Tensor) -> Pair:
    """The weight [N, K] as [K, N]."""
    return weight.t(), scales


def both_transposed(weight: Tensor, scales: Tensor) -> Pair:
    """The weight [N, K] and its scales [N / 128, K / 128] as [K, N] and [K / 128, N / 128]."""
    return weight.t(), scales.t()


def _past_dispatcher(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    return _EMPTY((rows, columns), (columns, 1), dtype)


def _on_this_gpu(x: Tensor) -> bool:
    return x.is_cuda and type(x) is Tensor and x.get_device() == torch._C._cuda_getDevice()


def _allocator(x: Tensor) -> New:
    """Makes tensors beside x. Past torch's dispatcher where nothing traces the call: that takes the host a third of the time."""
    traced = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack()
    if not traced and _EMPTY is not None and _on_this_gpu(x):
        return _past_dispatcher
    return lambda rows, columns, dtype: x.new_empty((rows, columns), dtype=dtype)


def _block_scaled(new: New, x: Tensor, in_a_byte: int, group: int, codes: torch.dtype, scales: torch.dtype) -> Pair:
    """Places for codes of x in a block-scaled format, and for their scales, swizzled."""
    rows, columns = x.shape
    padded = -(-rows // TILE_ROWS) * TILE_ROWS, -(-columns // group // TILE_SCALES) * TILE_SCALES
    return new(rows, columns // in_a_byte, codes), new(*padded, scales)


_MX = {MXFP4: (2, 32, torch.uint8, torch.uint8), MXFP8: (1, 32, E4M3, torch.uint8)}
"""Of each format: codes in a byte, elements of a group, and how both are stored."""


def _in_fp8(new: New, x: Tensor) -> Pair:
    rows, columns = x.shape
    codes, scales = new(rows, columns, E4M3), new(rows, 1, F32)
    _FP8_QUANT(codes, x, scales, None)
    return codes, scales


def channel(x: Tensor, weight: Tensor, scales: Tensor, given: Tensors, bias: Tensor | None) -> Tensor:
    """e4m3 per token and channel."""
    new = _allocator(x)
    codes, x_scales = _in_fp8(new, x)
    out = new(x.shape[0], weight.shape[1], x.dtype)
    _SCALED_MM(out, codes, weight, x_scales, scales, bias)
    return out


def int8(x: Tensor, weight: Tensor, scales: Tensor, given: Tensors, bias: Tensor | None) -> Tensor:
    """s8 per token and channel."""
    new, (rows, columns) = _allocator(x), x.shape
    codes, x_scales = new(rows, columns, torch.int8), new(rows, 1, F32)
    _INT8_QUANT(codes, x, x_scales, None)
    out = new(rows, weight.shape[1], x.dtype)
    _SCALED_MM(out, codes, weight, x_scales, scales, bias)
    return out


def block128(x: Tensor, weight: Tensor, scales: Tensor, given: Tensors, bias: Tensor | None) -> Tensor:
    """e4m3 in groups of 128 and blocks of 128 x 128."""
    new, (rows, columns) = _allocator(x), x.shape
    codes, x_scales = new(rows, columns, E4M3), new(columns // BLOCK, rows, F32).t()
    _GROUP_QUANT(x, codes, x_scales, BLOCK, _EPS, -_E4M3_MAX, _E4M3_MAX, False, True, False)
    out = new(rows, weight.shape[1], x.dtype)
    _SCALED_MM(out, codes, weight, x_scales, scales, bias)
    return out


def weights_of(format: str) -> Run:
    """x as it is, by block-scaled weights."""

    def run(x: Tensor, weight: Tensor, scales: Tensor, given: Tensors, bias: Tensor | None) -> Tensor:
        out = _allocator(x)(x.shape[0], scales.shape[0], x.dtype)
        _WEIGHT_MM(out, x, weight, scales, given["alpha"], bias, format, True)
        return out

    return run


def by_fp8(op: str) -> Run:
    """e4m3 per token, by folded weights."""
    multiply = overload(op)

    def run(x: Tensor, weight: Tensor, scales: Tensor, given: Tensors, bias: Tensor | None) -> Tensor:
        new = _allocator(x)
        codes, x_scales = _in_fp8(new, x)
        out = new(x.shape[0], scales.shape[0], x.dtype)
        multiply(out, codes, weight, scales, x_scales, bias)
        return out

    return run


def nvfp4(x: Tensor, weight: Tensor, scales: Tensor, given: Tensors, bias: Tensor | None) -> Tensor:
    """nvfp4 on both sides, by the calibrated range of x."""
    new = _allocator(x)
    codes, x_scales = _block_scaled(new, x, 2, 16, torch.uint8, E4M3)
    _NVFP4_QUANT(codes, x_scales, x, given["input_global_scale"], True)
    out = new(x.shape[0], weight.shape[0], x.dtype)
    _NVFP4_MM(out, codes, weight, x_scales, scales, given["alpha"], bias)
    return out


def mx(format: Format, op: str) -> Run:
    """x in a format whose scales are powers of two."""
    quantise, multiply = overload(f"scaled_{format}_quant"), overload(op)

    def run(x: Tensor, weight: Tensor, scales: Tensor, given: Tensors, bias: Tensor | None) -> Tensor:
        new = _allocator(x)
        codes, x_scales = _block_scaled(new, x, *_MX[format])
        quantise(codes, x_scales, x, "up", True)
        out = new(x.shape[0], weight.shape[0], x.dtype)
        multiply(out, codes, weight, x_scales, scales, given["alpha"], bias)
        return out

    return run
