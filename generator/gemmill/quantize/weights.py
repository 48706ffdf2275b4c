"""A weight [N, K] in one of the formats that layers and checkpoints have, whatever the names there.

    channel     e4m3, a scale f32 for each row: amax / 448
    int8        s8, a scale f32 for each row: amax / 127
    int8_asymmetric    s8 with a zero point for each row, and a scale f32: (largest - smallest) / 255, of the row and zero
    block128    e4m3, a scale f32 for each 128 x 128 block: amax / 448 (DeepSeek V3's inference code)
    block32     e4m3, a scale f32 for each 32 x 32 block: amax / 448 rounded up to a power of two (DeepSeek V4.1's ue8m0)
    group128    e4m3, a scale f32 for each 1 x 128 of a row: amax / 448
    nvfp4, mxfp4, mxfp6, mxfp8    block-scaled along K, as `gemmill.formats.quantise` defines them

A code is the nearest to weight / scale, ties to even. A row or block of zeros has scale 1. Equal inputs have equal bits
on every device. Zero points are those of compressed-tensors' `calculate_qparams`: the code nearest to -128 - smallest /
scale stands for zero, and joins weight / scale before rounding.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gemmill.arithmetic import grouped
from gemmill.formats.codes import decode, unpack
from gemmill.formats.quantise import LARGEST_PRODUCT, check_global_scale, power_of_two, quantise
from gemmill.vocab.float_type import E4M3, UE8M0
from gemmill.vocab.format import MXFP4, MXFP6, MXFP8, NVFP4, Format, ScaleRounding

BLOCKS = {"block128": (128, 128), "block32": (32, 32), "group128": (1, 128)}
"""Formats with a scale for each block, and the rows and columns that share one."""
ASYMMETRIC = "int8_asymmetric"
"""The format with zero points."""
ROWWISE = {"channel": torch.float8_e4m3fn, "int8": torch.int8, ASYMMETRIC: torch.int8}
"""Formats with a scale for each row, and the dtype of their codes."""
BLOCK_SCALED = {str(format): format for format in (NVFP4, MXFP4, MXFP6, MXFP8)}
WEIGHT_FORMATS = (*ROWWISE, *BLOCKS, *BLOCK_SCALED)
"""Formats that `quantize_weight` makes: scales of rows, of blocks, and of 16 or 32 elements along K."""
FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
_LOWEST, _STEPS = -128, 255
"""The lowest code with zero points, and the distance of the highest from it."""
CHUNKS = {"cpu": 1 << 18, "cuda": 1 << 24}
"""Weights in one pass, so that memory is bounded. On a CPU so many stay in its cache."""


@dataclass(frozen=True, kw_only=True)
class QuantizedWeight:
    """A weight [N, K] as codes and scales, in the order of a checkpoint: neither swizzled nor packed for a kernel."""

    format: str
    """One of WEIGHT_FORMATS."""
    codes: Tensor
    """[N, K] float8_e4m3fn (channel, blocks, mxfp8) or int8 (both of int8); uint8 [N, K / 2] (4 bits) or [N, 3 K / 4] (6 bits)."""
    scales: Tensor
    """f32 [N, 1]; of blocks of r x c f32 [N / r, K / c] rounded up; of block-scaled formats uint8 [N, K / group]."""
    global_scale: Tensor | None = None
    """f32 [1], of nvfp4 only: 2688 / amax, by which decoding divides."""
    zero_points: Tensor | None = None
    """int32 [N, 1] from -128 to 127, of int8_asymmetric only: the code of each row that stands for zero."""

    @property
    def n(self) -> int:
        """Rows: the outputs of a layer."""
        return self.codes.shape[0]

    @property
    def k(self) -> int:
        """Columns: the inputs of a layer."""
        format = BLOCK_SCALED.get(self.format)
        return self.codes.shape[1] if format is None or format.code.bits == 8 else format.k_of(self.codes.shape[1])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the weight, by field."""
        fields = {
            "codes": self.codes,
            "scales": self.scales,
            "global_scale": self.global_scale,
            "zero_points": self.zero_points,
        }
        return {name: tensor for name, tensor in fields.items() if tensor is not None}

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and zero points."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "QuantizedWeight":
        """The same weight on another device."""
        moved = {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in self.tensors.items()}
        return replace(self, **moved)

    def values(self, rows: slice = slice(None)) -> Tensor:
        """The values of rows, f32 [rows, K]: (code - zero point) * scale, over the global scale where there is one.
        Each rounds once.
        """
        codes, format = self.codes[rows], BLOCK_SCALED.get(self.format)
        if format is None:
            shifted = codes.float() if self.zero_points is None else codes.float() - self.zero_points[rows]
            return shifted * self._spread_scales(rows)
        numbers = codes.float() if format.code.bits == 8 else decode(unpack(codes, format.code.bits), format.code)
        scales = decode(self.scales[rows], format.scale)
        products = (grouped(numbers, format.group) * scales[..., None]).flatten(1)
        return products if self.global_scale is None else products / self.global_scale

    def _spread_scales(self, rows: slice) -> Tensor:
        if (block := BLOCKS.get(self.format)) is None:
            return self.scales[rows]
        start, stop, _ = rows.indices(self.n)
        of_blocks = self.scales[torch.arange(start, stop, device=self.scales.device, dtype=torch.int64) // block[0]]
        return of_blocks.repeat_interleave(block[1], dim=1)[:, : self.k]


def quantize_weight(
    weight: Tensor, format: str, *, global_scale: Tensor | None = None, scale_rounding: str = "up"
) -> QuantizedWeight:
    """Quantise a weight [N, K], bf16, f16, f32 or f64, in a format of WEIGHT_FORMATS, on its device and in bounded
    memory.

    global_scale: f32 [1], of nvfp4, where several weights share one. The default is 2688 / the weight's largest
    magnitude.

    scale_rounding: of mx formats, "up" or "ocp", as the quantisation ops have it.

    A weight that requires grad is taken as it is: the result has no gradients.

    Raises ValueError, in a sentence, for a format that does not exist, and for a tensor that is no float matrix. It
    also raises it for a K that the format cannot take, and for a weight that is NaN, infinite or beyond f32.
    """
    weight = weight.detach()
    check_format(format)
    check_shape(format, tuple(weight.shape))
    if weight.dtype not in FLOATS:
        names = ", ".join(str(kind).removeprefix("torch.") for kind in FLOATS)
        raise ValueError(
            f"the weight is {str(weight.dtype).removeprefix('torch.')}, which is quantised already or no number: "
            f"quantisation takes {names}"
        )
    if global_scale is not None and format != "nvfp4":
        raise ValueError(f"quantisation to {format} got a global scale, which only nvfp4 has: leave it out")
    refuse_not_finite(weight)
    if format in BLOCK_SCALED:
        return _block_scaled(weight, BLOCK_SCALED[format], global_scale, ScaleRounding(scale_rounding))
    if format in BLOCKS:
        return _by_blocks(weight, format, BLOCKS[format])
    if format == ASYMMETRIC:
        return _with_zero_points(weight)
    return _by_rows(weight, format, ROWWISE[format])


def empty_weight(format: str, n: int, k: int) -> QuantizedWeight:
    """A weight [N, K] of dtypes and shapes alone, on torch's meta device."""

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    if (block := BLOCKS.get(format)) is not None:
        scales = empty(-(-n // block[0]), -(-k // block[1]), dtype=torch.float32)
        return QuantizedWeight(format=format, codes=empty(n, k, dtype=torch.float8_e4m3fn), scales=scales)
    if format in ROWWISE:
        codes, scales = empty(n, k, dtype=ROWWISE[format]), empty(n, 1, dtype=torch.float32)
        points = empty(n, 1, dtype=torch.int32) if format == ASYMMETRIC else None
        return QuantizedWeight(format=format, codes=codes, scales=scales, zero_points=points)
    kind = BLOCK_SCALED[format]
    return QuantizedWeight(
        format=format,
        codes=empty(n, kind.code_bytes(k), dtype=getattr(torch, kind.torch_name)),
        scales=empty(n, kind.scale_count(k), dtype=torch.uint8),
        global_scale=empty(1, dtype=torch.float32) if kind.has_global_scale else None,
    )


def check_format(format: str) -> None:
    """Raises ValueError unless weights can be had in it."""
    if format not in WEIGHT_FORMATS:
        raise ValueError(f"there is no weight format {format!r}: the formats are {', '.join(WEIGHT_FORMATS)}")


def check_shape(format: str, shape: tuple[int, ...]) -> None:
    """Raises ValueError for a shape that a format cannot take."""
    if len(shape) != 2:
        raise ValueError(f"the weight has shape {list(shape)}, expected [N, K], two dimensions")
    if format in BLOCK_SCALED:
        BLOCK_SCALED[format].scale_count(shape[1])


def refuse_not_finite(weight: Tensor) -> None:
    """Raises ValueError for the first element that is NaN or infinite, or would be in f32."""
    for rows in chunks(weight):
        part = weight[rows]
        wrong = ~torch.isfinite(part.float() if part.dtype is torch.float64 else part)
        if wrong.any():
            row, column = wrong.nonzero()[0].tolist()
            value = part[row, column].item()
            where = " in float32" if math.isfinite(value) else ""
            raise ValueError(
                f"weight [{rows.start + row}, {column}] is {value}: weights that are quantised are finite{where}, so repair the "
                f"checkpoint or leave the layer as it is"
            )


def chunks(weight: Tensor, multiple: int = 1) -> Iterator[slice]:
    """Rows of a weight [N, K], about as many as its device's CHUNKS has weights, in multiples of `multiple`.

    There are none where the weight is empty.
    """
    n, k = weight.shape
    n = n if k else 0
    step = max(CHUNKS.get(weight.device.type, CHUNKS["cuda"]) // max(k, 1) // multiple, 1) * multiple
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


def _by_rows(weight: Tensor, format: str, dtype: torch.dtype) -> QuantizedWeight:
    n, k = weight.shape
    codes = weight.new_empty((n, k), dtype=dtype)
    scales = weight.new_ones((n, 1), dtype=torch.float32)
    for rows in chunks(weight):
        part = weight[rows].float()
        scales[rows] = _scale(part.abs().amax(dim=1, keepdim=True), dtype)
        codes[rows] = _nearest(part / scales[rows], dtype)
    return QuantizedWeight(format=format, codes=codes, scales=scales)


def _with_zero_points(weight: Tensor) -> QuantizedWeight:
    n, k = weight.shape
    codes = weight.new_empty((n, k), dtype=torch.int8)
    scales = weight.new_ones((n, 1), dtype=torch.float32)
    points = weight.new_zeros((n, 1), dtype=torch.int32)
    for rows in chunks(weight):
        part = weight[rows].float()
        low, high = part.amin(dim=1, keepdim=True).clamp(max=0), part.amax(dim=1, keepdim=True).clamp(min=0)
        scales[rows] = _step(high / 2 - low / 2, _STEPS / 2)  # of halves the difference is finite
        points[rows] = (_LOWEST - low / scales[rows]).round().clamp(_LOWEST, _LOWEST + _STEPS).int()
        shifted = part / scales[rows] + points[rows]
        codes[rows] = shifted.clamp(_LOWEST, _LOWEST + _STEPS).round().to(torch.int8)
    return QuantizedWeight(format=ASYMMETRIC, codes=codes, scales=scales, zero_points=points)


def _by_blocks(weight: Tensor, format: str, block: tuple[int, int]) -> QuantizedWeight:
    (n, k), (high, wide) = weight.shape, block
    dtype = torch.float8_e4m3fn
    codes = weight.new_empty((n, k), dtype=dtype)
    scales = weight.new_ones((-(-n // high), -(-k // wide)), dtype=torch.float32)
    for rows in chunks(weight, high):
        part = weight[rows].float()
        padded = torch.nn.functional.pad(part, (0, -k % wide, 0, -len(part) % high))
        blocks = padded.unflatten(1, (-1, wide)).unflatten(0, (-1, high))
        amax = blocks.abs().amax(dim=(1, 3))
        of_blocks = _power_of_two(amax) if format == "block32" else _scale(amax, dtype)
        scales[rows.start // high : -(-rows.stop // high)] = of_blocks
        divided = (blocks / of_blocks[:, None, :, None]).flatten(2).flatten(0, 1)
        codes[rows] = _nearest(divided[: len(part), :k], dtype)
    return QuantizedWeight(format=format, codes=codes, scales=scales)


def _scale(amax: Tensor, dtype: torch.dtype) -> Tensor:
    return _step(amax, _LARGEST[dtype])


def _power_of_two(amax: Tensor) -> Tensor:
    """The least power of two by which e4m3 holds magnitudes up to amax, and 1 for 0."""
    scale = decode(power_of_two(amax, E4M3, ScaleRounding.UP), UE8M0).clamp(min=torch.finfo(torch.float32).tiny)
    return torch.where(amax == 0, 1.0, scale)


def _step(span: Tensor, steps: float) -> Tensor:
    """The scale by which a span has so many steps."""
    # The divisor is a tensor: on a GPU torch multiplies by the reciprocal of a number, which is a rounding off.
    scale = (span / torch.full_like(span, steps)).clamp(min=torch.finfo(torch.float32).tiny)
    return torch.where(span == 0, 1.0, scale)


def _nearest(divided: Tensor, dtype: torch.dtype) -> Tensor:
    """Codes of divided weights. torch's conversion to e4m3 rounds to nearest even, and would make NaN of values above
    the largest."""
    clamped = divided.clamp(-_LARGEST[dtype], _LARGEST[dtype])
    return (clamped.round() if dtype is torch.int8 else clamped).to(dtype)


def _block_scaled(
    weight: Tensor, format: Format, global_scale: Tensor | None, rounding: ScaleRounding
) -> QuantizedWeight:
    n, k = weight.shape
    if format.has_global_scale and global_scale is None:
        global_scale = _global_scale(weight)
    if global_scale is not None:
        global_scale = global_scale.detach().to(weight.device, torch.float32).reshape(1)
        check_global_scale(global_scale)
    codes = weight.new_empty((n, format.code_bytes(k)), dtype=torch.uint8)
    scales = weight.new_empty((n, format.scale_count(k)), dtype=torch.uint8)
    for rows in chunks(weight):
        made = quantise(weight[rows], format, global_scale=global_scale, rounding=rounding)
        codes[rows], scales[rows] = made.codes, made.scales
    if format.code.bits == 8:
        codes = codes.view(torch.float8_e4m3fn)
    return QuantizedWeight(format=str(format), codes=codes, scales=scales, global_scale=global_scale)


def _global_scale(weight: Tensor) -> Tensor:
    """2688 / amax, as `gemmill.formats.quantise.global_scale_of`, without an f32 copy of the weight."""
    amax = max((float(weight[rows].abs().amax()) for rows in chunks(weight)), default=0.0)
    info = torch.finfo(torch.float32)
    if amax == 0:
        return torch.ones(1, device=weight.device, dtype=torch.float32)
    scale = torch.tensor([LARGEST_PRODUCT], dtype=torch.float32, device="cpu") / torch.tensor(
        [amax], dtype=torch.float32, device="cpu"
    )
    return scale.clamp(info.tiny, info.max).to(weight.device)
