"""The calls of a layer: quantise x [M, K] and multiply it, by ops bound once.

The functions of `gemmill` would do the same. Here nothing stands between a layer and its ops, because a call of a few
microseconds shows the host's work. A weight and its scales come as the ops take them, other tensors of the layer by
name. A bias is [N], of x's dtype.
"""

import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gemmill.formats.folded_blocks import rounded_rows
from gemmill.formats.layout import BLOCK_COLUMNS, SIDE, TILE_ROWS, TILE_SCALES
from gemmill.quantize.weights import BLOCKS
from gemmill.runtime.holding import holds_here
from gemmill.runtime.ops import active, overload, supports
from gemmill.vocab import Format
from gemmill.vocab.format import MXFP4, MXFP8

Tensors = Mapping[str, Tensor | None]
Pair = tuple[Tensor, Tensor]
Run = Callable[[Tensor, Tensor, Tensor, Tensors, Tensor | None], Tensor]
"""A function of x, the weight, its scales, the layer's tensors and its bias, which returns the result."""

E4M3, F32 = torch.float8_e4m3fn, torch.float32
_E4M3_MAX = 448.0
_EPS = 1e-10
UNPACKED_FROM = 16384
"""The rows from which nvfp4 weights of an e4m3 product are unpacked for each call. Derived for an H200: packed weights cost 6.1 ms
more for 246 million weights and 32,760 rows (a block of docs/layers.md), so that unpacking may take half of that here."""
_MOST_KEPT = 1 << 20
"""The most elements of inputs whose codes and scales a layer keeps."""
_MOST_PAIRS = 64
"""The most pairs of codes and scales kept in a thread, of all shapes and streams: some tens of megabytes."""
_FP8_QUANT, _INT8_QUANT = overload("dynamic_per_token_scaled_fp8_quant"), overload("dynamic_scaled_int8_quant")
_INT8_QUANT_ROW_SUMS = overload("dynamic_scaled_int8_quant_row_sums")
_GROUP_QUANT, _NVFP4_QUANT = overload("per_token_group_fp8_quant"), overload("scaled_nvfp4_quant")
_SCALED_MM, _WEIGHT_MM = overload("cutlass_scaled_mm"), overload("fp4_weight_mm")
_SCALED_MM_AZP, _NVFP4_MM = overload("cutlass_scaled_mm_azp"), overload("cutlass_scaled_nvfp4_mm")


def as_they_are(weight: Tensor, scales: Tensor) -> Pair:
    """Operands that ops take in their stored form."""
    return weight, scales


def transposed(weight: Tensor, scales: Tensor) -> Pair:
    """The weight [N, K] as [K, N]."""
    return weight.t(), scales


def both_transposed(weight: Tensor, scales: Tensor) -> Pair:
    """The weight [N, K] and its scales of blocks [N / r, K / c] as [K, N] and [K / c, N / r]."""
    return weight.t(), scales.t()


class _Kept(threading.local):
    """Codes and scales of a thread's earlier calls, by their use."""

    def __init__(self) -> None:
        self.pairs: dict[tuple[object, ...], Pair] = {}


_kept = _Kept()


def _stream_of(x: Tensor) -> int | None:
    """The stream of calls on x whose codes and scales may be kept, since its own calls run in order.

    It is None for captured or traced calls, on a CPU, and for a large x: such calls hide the host's work.
    """
    if not x.is_cuda or x.numel() > _MOST_KEPT or type(x) is not Tensor or torch.compiler.is_compiling():
        return None
    device = x.get_device()
    if torch._C._cuda_getDevice() == device:
        captured = torch.cuda.is_current_stream_capturing()
    else:  # torch asks the current device's stream alone
        with torch.cuda.device(device):
            captured = torch.cuda.is_current_stream_capturing()
    stream: int = torch._C._cuda_getCurrentRawStream(device)
    return None if captured else stream


def _places(x: Tensor, make: Callable[[Tensor], Pair]) -> Pair:
    """Memory for codes and scales of x [M, K]. To allocate both takes the host longer than an op."""
    stream = _stream_of(x)
    if stream is None:
        return make(x)
    key = (make, stream, x.get_device(), x.shape)
    pair = _kept.pairs.get(key)
    if pair is None:
        if len(_kept.pairs) >= _MOST_PAIRS:
            _kept.pairs.clear()
        pair = _kept.pairs[key] = make(x)
    return pair


def _e4m3_rows(x: Tensor) -> Pair:
    rows, columns = x.shape
    return x.new_empty((rows, columns), dtype=E4M3), x.new_empty((rows, 1), dtype=F32)


def _s8_rows(x: Tensor) -> Pair:
    rows, columns = x.shape
    return x.new_empty((rows, columns), dtype=torch.int8), x.new_empty((rows, 1), dtype=F32)


def _e4m3_groups_of(size: int) -> Callable[[Tensor], Pair]:
    def make(x: Tensor) -> Pair:
        rows, columns = x.shape
        return x.new_empty((rows, columns), dtype=E4M3), x.new_empty((columns // size, rows), dtype=F32).t()

    return make


def _empty(x: Tensor, in_a_byte: int, group: int, codes: Any, scales: Any) -> Pair:
    """Memory of a block-scaled format: codes of x, and their scales, swizzled."""
    rows, columns = x.shape
    of_scales = (-(-rows // TILE_ROWS) * TILE_ROWS, -(-columns // group // TILE_SCALES) * TILE_SCALES)
    return x.new_empty((rows, columns // in_a_byte), dtype=codes), x.new_empty(of_scales, dtype=scales)


def _nvfp4_rows(x: Tensor) -> Pair:
    return _empty(x, 2, 16, torch.uint8, E4M3)


def _mxfp4_rows(x: Tensor) -> Pair:
    return _empty(x, 2, 32, torch.uint8, torch.uint8)


def _mxfp8_rows(x: Tensor) -> Pair:
    return _empty(x, 1, 32, E4M3, torch.uint8)


_MX_ROWS = {MXFP4: _mxfp4_rows, MXFP8: _mxfp8_rows}


def _in_fp8(x: Tensor) -> Pair:
    codes, scales = _places(x, _e4m3_rows)
    _FP8_QUANT(codes, x, scales, None)
    return codes, scales


def channel(x: Tensor, weight: Tensor, scales: Tensor, given: Tensors, bias: Tensor | None) -> Tensor:
    """The product of x in e4m3 per token and the weight in e4m3 per channel."""
    codes, x_scales = _in_fp8(x)
    out = x.new_empty((x.shape[0], weight.shape[1]))
    _SCALED_MM(out, codes, weight, x_scales, scales, bias)
    return out


def int8(x: Tensor, weight: Tensor, scales: Tensor, given: Tensors, bias: Tensor | None) -> Tensor:
    """The product of x in s8 per token and the weight in s8 per channel."""
    codes, x_scales = _places(x, _s8_rows)
    _INT8_QUANT(codes, x, x_scales, None)
    out = x.new_empty((x.shape[0], weight.shape[1]))
    _SCALED_MM(out, codes, weight, x_scales, scales, bias)
    return out


def int8_asymmetric(x: Tensor, weight: Tensor, scales: Tensor, given: Tensors, bias: Tensor | None) -> Tensor:
    """The product of x in s8 per token and the weight in s8 per channel with zero points.

    x has none. So the correction is an outer product, of the sums of x's rows, which its quantiser stores, and the
    weight's zero points, and the op of zero points per token computes it.
    """
    codes, x_scales = _places(x, _s8_rows)
    sums = x.new_empty(x.shape[0], dtype=torch.int32)
    _INT8_QUANT_ROW_SUMS(codes, x, x_scales, sums, None)
    out = x.new_empty((x.shape[0], weight.shape[1]))
    _SCALED_MM_AZP(out, codes, weight, x_scales, scales, given["zero_points"], sums, bias)
    return out


def by_blocks(format: str) -> Run:
    """The function that multiplies x in e4m3 in groups by the weight in blocks as wide."""
    size = BLOCKS[format][1]
    make = _e4m3_groups_of(size)

    def run(x: Tensor, weight: Tensor, scales: Tensor, given: Tensors, bias: Tensor | None) -> Tensor:
        codes, x_scales = _places(x, make)
        _GROUP_QUANT(x, codes, x_scales, size, _EPS, -_E4M3_MAX, _E4M3_MAX, False, True, False)
        out = x.new_empty((x.shape[0], weight.shape[1]))
        _SCALED_MM(out, codes, weight, x_scales, scales, bias)
        return out

    return run


block128, block32, group128 = map(by_blocks, BLOCKS)


def weights_of(format: str) -> Run:
    """The function that multiplies x as it is by block-scaled weights."""

    def run(x: Tensor, weight: Tensor, scales: Tensor, given: Tensors, bias: Tensor | None) -> Tensor:
        out = x.new_empty((x.shape[0], scales.shape[0]))
        _WEIGHT_MM(out, x, weight, scales, given["alpha"], bias, format, True)
        return out

    return run


def by_fp8(op: str, unpacked_from: int | None = None) -> Run:
    """The function that multiplies x in e4m3 per token by folded weights.

    unpacked_from: the rows from which a call puts nvfp4 weights into e4m3 rows first, and takes the kernels of e4m3 weights. They
    multiply the same operands, and the scales of a sum in another order.
    """
    multiply = overload(op)

    def run(x: Tensor, weight: Tensor, scales: Tensor, given: Tensors, bias: Tensor | None) -> Tensor:
        codes, x_scales = _in_fp8(x)
        out = x.new_empty((x.shape[0], scales.shape[0]))
        if unpacked_from is not None and x.shape[0] >= unpacked_from and _unpacks(x, weight, scales):
            _SCALED_MM(out, codes, rounded_rows(weight).t(), x_scales, scales, bias)
        else:
            multiply(out, codes, weight, scales, x_scales, bias)
        return out

    return run


def _unpacks(x: Tensor, weight: Tensor, scales: Tensor) -> bool:
    """Whether a call with many rows may unpack its weights.

    Not under batch invariance, whose calls keep to one op; not in a captured or compiled call, where few rows may have come
    before; not weights with padding; and not where the build has no kernel of the dense op.
    """
    is_whole = (scales.shape[0], x.shape[1]) == (weight.shape[0] * SIDE, weight.shape[1] * BLOCK_COLUMNS)
    if not is_whole or torch.compiler.is_compiling() or holds_here():
        return False
    return not x.is_cuda or (
        not torch.cuda.is_current_stream_capturing() and _is_dense_built(active().build_id, x.dtype)
    )


@cache
def _is_dense_built(build_id: str, out_dtype: torch.dtype) -> bool:
    return supports("cutlass_scaled_mm", dtype=E4M3, out_dtype=out_dtype, group_size=0)


def nvfp4(x: Tensor, weight: Tensor, scales: Tensor, given: Tensors, bias: Tensor | None) -> Tensor:
    """The product in nvfp4 on both sides, by the calibrated range of x."""
    codes, x_scales = _places(x, _nvfp4_rows)
    _NVFP4_QUANT(codes, x_scales, x, given["input_global_scale"], True)
    out = x.new_empty((x.shape[0], weight.shape[0]))
    _NVFP4_MM(out, codes, weight, x_scales, scales, given["alpha"], bias)
    return out


def mx(format: Format, op: str) -> Run:
    """The function that multiplies x in a format whose scales are powers of two."""
    quantise, multiply = overload(f"scaled_{format}_quant"), overload(op)
    make = _MX_ROWS[format]

    def run(x: Tensor, weight: Tensor, scales: Tensor, given: Tensors, bias: Tensor | None) -> Tensor:
        codes, x_scales = _places(x, make)
        quantise(codes, x_scales, x, "up", True)
        out = x.new_empty((x.shape[0], weight.shape[0]))
        multiply(out, codes, weight, x_scales, scales, given["alpha"], bias)
        return out

    return run
