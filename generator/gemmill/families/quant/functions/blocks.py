"""The block-scaled quantisation ops as functions that allocate their results.

Each raises RuntimeError with one sentence where its arguments do not fit. The arithmetic is that of
gemmill.formats.quantise.
"""

import math

import torch

from gemmill.formats.layout import SIDE, TILE_ROWS, swizzled_shape
from gemmill.runtime.sizes import size
from gemmill.vocab import Format
from gemmill.vocab.format import MXFP4, MXFP6, MXFP8, NVFP4

__all__ = [
    "mxfp4_experts_quant",
    "mxfp8_experts_quant",
    "nvfp4_weight_dequant",
    "scaled_fp4_experts_quant",
    "scaled_mxfp4_dequant",
    "scaled_mxfp4_quant",
    "scaled_mxfp6_dequant",
    "scaled_mxfp6_quant",
    "scaled_mxfp8_dequant",
    "scaled_mxfp8_gelu_quant",
    "scaled_mxfp8_modulate_quant",
    "scaled_mxfp8_quant",
    "scaled_nvfp4_dequant",
    "scaled_nvfp4_quant",
    "silu_and_mul_mxfp4_experts_quant",
    "silu_and_mul_mxfp4_quant",
    "silu_and_mul_mxfp6_quant",
    "silu_and_mul_mxfp8_experts_quant",
    "silu_and_mul_mxfp8_quant",
    "silu_and_mul_nvfp4_quant",
    "silu_and_mul_scaled_fp4_experts_quant",
]

_ops = torch.ops.gemmill
Pair = tuple[torch.Tensor, torch.Tensor]
Experts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _codes(format: Format, input: torch.Tensor, hidden: int) -> torch.Tensor:
    return input.new_empty((*input.shape[:-1], format.code_bytes(hidden)), dtype=getattr(torch, format.torch_name))


def _scales(format: Format, input: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    return input.new_empty(shape, dtype=torch.float8_e4m3fn if format.has_global_scale else torch.uint8)


def _block_scaled(
    op: str,
    format: Format,
    input: torch.Tensor,
    *given: object,
    swizzled: bool,
    gated: bool = False,
    more: tuple[bool, ...] = (),
) -> Pair:
    """Codes and scales of `input` that a block-scaled op writes, where `given` are its other arguments."""
    hidden = size(input, -1) // 2 if gated else size(input, -1)
    rows, groups = input.shape[:-1].numel(), format.scale_count(hidden)
    codes = _codes(format, input, hidden)
    scales = _scales(format, input, swizzled_shape(rows, groups) if swizzled else (rows, groups))
    getattr(_ops, op).default(codes, scales, input, *given, swizzled, *more)
    return codes, scales


def _on_device(global_scale: torch.Tensor | float, input: torch.Tensor) -> torch.Tensor:
    """The global scale as the op takes it: f32 [1] on input's device.

    Raises ValueError for a number that is not finite or not above zero. Only its device knows a tensor's value.
    """
    if isinstance(global_scale, torch.Tensor):
        return global_scale
    if not (math.isfinite(global_scale) and global_scale > 0):
        raise ValueError(
            f"global scale is {global_scale}, expected a finite number above zero: 2688 / largest absolute value"
        )
    return torch.full((1,), global_scale, dtype=torch.float32, device=input.device)


def scaled_nvfp4_quant(
    input: torch.Tensor, global_scale: torch.Tensor | float, is_sf_swizzled_layout: bool = True
) -> Pair:
    """Return nvfp4 codes uint8 [..., hidden / 2], two a byte, of `input` [..., hidden], and their scales.

    `input` is bf16 or f16, and hidden a multiple of 16. Scales are float8_e4m3fn. Swizzled, they are [rows rounded up
    to 128, hidden / 16 rounded up to 4] with zeros as padding. Else they are [rows, hidden / 16].

    `global_scale` is f32 [1] or a number: 2688 / the largest absolute value. Decoding divides by it. Raises ValueError
    for a number that is not finite or not above zero. By such a tensor on a GPU all scales are NaN.
    """
    given, swizzled = _on_device(global_scale, input), is_sf_swizzled_layout
    return _block_scaled("scaled_nvfp4_quant", NVFP4, input, given, swizzled=swizzled)


def silu_and_mul_nvfp4_quant(
    input: torch.Tensor, input_global_scale: torch.Tensor | float, is_sf_swizzled_layout: bool = True
) -> Pair:
    """Quantise as scaled_nvfp4_quant silu(gate) * up of `input` [..., 2 hidden]: gate, then up."""
    given, swizzled = _on_device(input_global_scale, input), is_sf_swizzled_layout
    return _block_scaled("silu_and_mul_nvfp4_quant", NVFP4, input, given, gated=True, swizzled=swizzled)


def scaled_mxfp4_quant(input: torch.Tensor, scale_rounding: str = "up", is_sf_swizzled_layout: bool = True) -> Pair:
    """Return mxfp4 codes uint8 [..., hidden / 2], two a byte, of `input` [..., hidden], and their scales.

    `input` is bf16 or f16, and hidden a multiple of 32. Scales are exponents, uint8. Swizzled, they are [rows rounded
    up to 128, hidden / 32 rounded up to 4] with zeros as padding. Else they are [rows, hidden / 32].

    `scale_rounding` is "up", so that no code saturates, or "ocp", as the specification has it.
    """
    swizzled = is_sf_swizzled_layout
    return _block_scaled("scaled_mxfp4_quant", MXFP4, input, scale_rounding, swizzled=swizzled)


def silu_and_mul_mxfp4_quant(
    input: torch.Tensor, scale_rounding: str = "up", is_sf_swizzled_layout: bool = True
) -> Pair:
    """Quantise as scaled_mxfp4_quant silu(gate) * up of `input` [..., 2 hidden]: gate, then up."""
    swizzled = is_sf_swizzled_layout
    return _block_scaled("silu_and_mul_mxfp4_quant", MXFP4, input, scale_rounding, gated=True, swizzled=swizzled)


def scaled_mxfp6_quant(input: torch.Tensor, scale_rounding: str = "up", is_sf_swizzled_layout: bool = True) -> Pair:
    """Return mxfp6 codes of `input` [..., hidden], e3m2 in uint8 [..., 3 hidden / 4], four in three bytes, and their
    scales.

    `input` is bf16 or f16, and hidden a multiple of 32. Scales are exponents, uint8. Swizzled, they are [rows rounded
    up to 128, hidden / 32 rounded up to 4] with zeros as padding. Else they are [rows, hidden / 32].

    `scale_rounding` is "up", so that no code saturates, or "ocp", as the specification has it.
    """
    swizzled = is_sf_swizzled_layout
    return _block_scaled("scaled_mxfp6_quant", MXFP6, input, scale_rounding, swizzled=swizzled)


def silu_and_mul_mxfp6_quant(
    input: torch.Tensor, scale_rounding: str = "up", is_sf_swizzled_layout: bool = True
) -> Pair:
    """Quantise as scaled_mxfp6_quant silu(gate) * up of `input` [..., 2 hidden]: gate, then up."""
    swizzled = is_sf_swizzled_layout
    return _block_scaled("silu_and_mul_mxfp6_quant", MXFP6, input, scale_rounding, gated=True, swizzled=swizzled)


def scaled_mxfp8_quant(input: torch.Tensor, scale_rounding: str = "up", is_sf_swizzled_layout: bool = True) -> Pair:
    """Return mxfp8 codes float8_e4m3fn [..., hidden] of `input` [..., hidden], and their scales.

    `input` is bf16 or f16, and hidden a multiple of 32. Scales are exponents, uint8. Swizzled, they are [rows rounded
    up to 128, hidden / 32 rounded up to 4] with zeros as padding. Else they are [rows, hidden / 32].

    `scale_rounding` is "up", so that no code saturates, or "ocp", as the specification has it.
    """
    swizzled = is_sf_swizzled_layout
    return _block_scaled("scaled_mxfp8_quant", MXFP8, input, scale_rounding, swizzled=swizzled)


def silu_and_mul_mxfp8_quant(
    input: torch.Tensor, scale_rounding: str = "up", is_sf_swizzled_layout: bool = True
) -> Pair:
    """Quantise as scaled_mxfp8_quant silu(gate) * up of `input` [..., 2 hidden]: gate, then up."""
    swizzled = is_sf_swizzled_layout
    return _block_scaled("silu_and_mul_mxfp8_quant", MXFP8, input, scale_rounding, gated=True, swizzled=swizzled)


def scaled_mxfp8_gelu_quant(
    input: torch.Tensor,
    activation: str = "gelu_tanh",
    scale_rounding: str = "up",
    is_sf_swizzled_layout: bool = True,
    *,
    rounds_to_input: bool = False,
) -> Pair:
    """Quantise as scaled_mxfp8_quant GELU of `input` [..., hidden] in f32.

    GELU is by tanh ("gelu_tanh", LightX2V's) or by erf ("gelu"). Raises ValueError for another activation. With
    `rounds_to_input` it is torch's, and rounds to input's dtype before coding, as LightX2V's.
    """
    if activation not in ("gelu_tanh", "gelu"):
        raise ValueError(f"activation is {activation!r}, expected 'gelu_tanh' or 'gelu'")
    more = (activation == "gelu_tanh", rounds_to_input)
    swizzled = is_sf_swizzled_layout
    return _block_scaled("scaled_mxfp8_gelu_quant", MXFP8, input, scale_rounding, swizzled=swizzled, more=more)


def scaled_mxfp8_modulate_quant(
    input: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    scale_rounding: str = "up",
    is_sf_swizzled_layout: bool = True,
    *,
    rounds_to_input: bool = False,
) -> Pair:
    """Quantise as scaled_mxfp8_quant input * (1 + scale) + shift, computed in f32.

    `scale` and `shift` are of input's dtype: [hidden], or with a row for each of input's. With `rounds_to_input` the
    result rounds to input's dtype before coding, as LightX2V's.
    """
    given, swizzled, more = (scale, shift, scale_rounding), is_sf_swizzled_layout, (rounds_to_input,)
    return _block_scaled("scaled_mxfp8_modulate_quant", MXFP8, input, *given, swizzled=swizzled, more=more)


def _of_experts(
    op: str,
    format: Format,
    input: torch.Tensor,
    expert_offsets: torch.Tensor,
    *given: object,
    global_scale: torch.Tensor | None = None,
) -> Experts:
    """Codes and scales that an op writes of rows sorted by expert, and where each expert's scales begin.

    Nothing waits for the device: there are as many rows of scales as these experts may need.
    """
    hidden = size(input, -1) // 2 if op.startswith("silu_and_mul") else size(input, -1)
    rows, experts = input.shape[:-1].numel(), max(expert_offsets.numel() - 1, 0)
    tiles = (rows + (TILE_ROWS - 1) * experts) // TILE_ROWS
    codes = _codes(format, input, hidden)
    scales = _scales(format, input, (tiles * TILE_ROWS, swizzled_shape(0, format.scale_count(hidden))[1]))
    ends = expert_offsets.reshape(-1).to(torch.int32)
    padded = (ends.diff() + (TILE_ROWS - 1)) // TILE_ROWS * TILE_ROWS
    scale_offsets = torch.nn.functional.pad(padded.cumsum(0), (1, 0)).to(torch.int32)
    scaled = () if global_scale is None else (global_scale,)
    getattr(_ops, op).default(codes, scales, input, *scaled, expert_offsets, scale_offsets, *given)
    return codes, scales, scale_offsets


def scaled_fp4_experts_quant(
    input: torch.Tensor, input_global_scale: torch.Tensor, expert_offsets: torch.Tensor
) -> Experts:
    """Quantise as scaled_nvfp4_quant rows sorted by expert, each with its own global scale, f32 [experts].

    `expert_offsets`, s32 [experts + 1], has the first row of each expert, and the end. Each expert's scales are a
    swizzled matrix: float8_e4m3fn [rows, hidden / 16 rounded up to 4]. The last result, s32 [experts + 1], says where
    each matrix begins, at a multiple of 128. Rows outside of all experts get codes of zero. Rows of scales from the end
    on are not written.
    """
    return _of_experts("scaled_fp4_experts_quant", NVFP4, input, expert_offsets, global_scale=input_global_scale)


def silu_and_mul_scaled_fp4_experts_quant(
    input: torch.Tensor, input_global_scale: torch.Tensor, expert_offsets: torch.Tensor
) -> Experts:
    """Quantise as scaled_fp4_experts_quant silu(gate) * up of `input` [..., 2 hidden]: gate, then up."""
    op = "silu_and_mul_scaled_fp4_experts_quant"
    return _of_experts(op, NVFP4, input, expert_offsets, global_scale=input_global_scale)


def mxfp4_experts_quant(input: torch.Tensor, expert_offsets: torch.Tensor, scale_rounding: str = "up") -> Experts:
    """Quantise as scaled_mxfp4_quant rows sorted by expert.

    Offsets and results are those of scaled_fp4_experts_quant, with scales in uint8.
    """
    given = expert_offsets.numel() - 1, scale_rounding
    return _of_experts("mxfp4_experts_quant", MXFP4, input, expert_offsets, *given)


def silu_and_mul_mxfp4_experts_quant(
    input: torch.Tensor, expert_offsets: torch.Tensor, scale_rounding: str = "up"
) -> Experts:
    """Quantise as mxfp4_experts_quant silu(gate) * up of `input` [..., 2 hidden]: gate, then up."""
    given = expert_offsets.numel() - 1, scale_rounding
    return _of_experts("silu_and_mul_mxfp4_experts_quant", MXFP4, input, expert_offsets, *given)


def mxfp8_experts_quant(input: torch.Tensor, expert_offsets: torch.Tensor, scale_rounding: str = "up") -> Experts:
    """Quantise as scaled_mxfp8_quant rows sorted by expert.

    Offsets and results are those of scaled_fp4_experts_quant, with scales in uint8.
    """
    given = expert_offsets.numel() - 1, scale_rounding
    return _of_experts("mxfp8_experts_quant", MXFP8, input, expert_offsets, *given)


def silu_and_mul_mxfp8_experts_quant(
    input: torch.Tensor, expert_offsets: torch.Tensor, scale_rounding: str = "up"
) -> Experts:
    """Quantise as mxfp8_experts_quant silu(gate) * up of `input` [..., 2 hidden]: gate, then up."""
    given = expert_offsets.numel() - 1, scale_rounding
    return _of_experts("silu_and_mul_mxfp8_experts_quant", MXFP8, input, expert_offsets, *given)


def _values(format: Format, input: torch.Tensor, dtype: torch.dtype, *given: object) -> torch.Tensor:
    out = input.new_empty((*input.shape[:-1], format.k_of(size(input, -1))), dtype=dtype)
    getattr(_ops, f"scaled_{format}_dequant").default(out, input, *given)
    return out


def scaled_nvfp4_dequant(
    input: torch.Tensor,
    input_sf: torch.Tensor,
    global_scale: torch.Tensor | float,
    dtype: torch.dtype = torch.bfloat16,
    is_sf_swizzled_layout: bool = True,
) -> torch.Tensor:
    """Return the values [..., hidden] in `dtype` (bfloat16, float16 or float32) of nvfp4 codes and scales.

    Codes are uint8 [..., hidden / 2]; scales are as scaled_nvfp4_quant writes them. code * scale is exact. The function
    divides it by `global_scale`, rounds to f32, then to `dtype`. NaN bytes as scales raise on the CPU, and give NaN on
    a GPU. Raises ValueError as scaled_nvfp4_quant does.
    """
    given = input_sf, _on_device(global_scale, input), is_sf_swizzled_layout
    return _values(NVFP4, input, dtype, *given)


def nvfp4_weight_dequant(blocks: torch.Tensor, n: int, k: int) -> torch.Tensor:
    """Return the bfloat16 values [n, k], code * scale, of nvfp4 weights packed by gemmill.quantize.fp4_blocks.to_blocks.

    `blocks` are those of the result, uint8. The global scale is not in the values, which are exact. Raises RuntimeError
    with one sentence where the sizes do not fit.
    """
    of_blocks = blocks.dim() == 3
    if of_blocks and not (0 <= n <= SIDE * blocks.shape[0] and 0 <= k <= SIDE * blocks.shape[1]):
        raise RuntimeError(
            f"nvfp4_weight_dequant: n and k are {n} and {k}, expected {SIDE * blocks.shape[0]} and {SIDE * blocks.shape[1]} at most: "
            f"blocks is {list(blocks.shape)}, each with {SIDE} rows and columns"
        )
    out = blocks.new_empty((n, k) if of_blocks else (0, 0), dtype=torch.bfloat16)
    _ops.nvfp4_weight_dequant.default(out, blocks)
    return out


def scaled_mxfp4_dequant(
    input: torch.Tensor,
    input_sf: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    is_sf_swizzled_layout: bool = True,
) -> torch.Tensor:
    """Return the values [..., hidden] in `dtype` (bfloat16, float16 or float32) of mxfp4 codes and scales.

    Codes are uint8 [..., hidden / 2]; scales are as scaled_mxfp4_quant writes them. code * scale is exact in f32, or
    infinite beyond it. Scale byte 255 raises on the CPU, and gives NaN on a GPU.
    """
    return _values(MXFP4, input, dtype, input_sf, is_sf_swizzled_layout)


def scaled_mxfp6_dequant(
    input: torch.Tensor,
    input_sf: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    is_sf_swizzled_layout: bool = True,
) -> torch.Tensor:
    """Return the values [..., hidden] in `dtype` (bfloat16, float16 or float32) of mxfp6 codes and scales.

    Codes are uint8 [..., 3 hidden / 4]; scales are as scaled_mxfp6_quant writes them. code * scale is exact in f32, or
    infinite beyond it. Scale byte 255 raises on the CPU, and gives NaN on a GPU.
    """
    return _values(MXFP6, input, dtype, input_sf, is_sf_swizzled_layout)


def scaled_mxfp8_dequant(
    input: torch.Tensor,
    input_sf: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    is_sf_swizzled_layout: bool = True,
) -> torch.Tensor:
    """Return the values [..., hidden] in `dtype` (bfloat16, float16 or float32) of mxfp8 codes and scales.

    Codes are float8_e4m3fn [..., hidden]; scales are as scaled_mxfp8_quant writes them. code * scale is exact in f32,
    or infinite beyond it. Scale byte 255 raises on the CPU, and gives NaN on a GPU.
    """
    return _values(MXFP8, input, dtype, input_sf, is_sf_swizzled_layout)
