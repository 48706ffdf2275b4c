"""Block-scaled quantisation: the definition of its codes and scales.

It is f32, every operation rounded on its own, and starts from the input's values:

    amax       largest absolute value of a group; NaN elements do not count
    nvfp4      scale = ue4m3(global * amax / 6), code = e2m1(x * global / scale), 0 where the scale is 0
    mx, up     scale = 2^ceil(log2(amax / largest code)), code = code(x / scale)
    mx, ocp    scale = 2^(floor(log2 amax) - exponent of the largest code), code = code(x / scale)

`global` is 2688 / amax of the tensor, and decoding divides by it. Powers of two are exact, and lie within 2^-127 (also
for a group of zeros) to 2^127. Sources: OCP MX specification 1.0, section 6.3 (ocp); LightX2V's mx kernels (up);
NVIDIA's NVFP4 recipe, as in vLLM's kernel, which multiplies by approximate reciprocals instead.

A division by an nvfp4 scale never moves a code: x * global has 24 bits, scales and boundaries between codes have 7 together.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from gemmill.arithmetic import grouped
from gemmill.formats.codes import decode, encode, pack, two_to, unpack
from gemmill.formats.layout import LANES, TILE_ROWS, TILE_SCALES, padded_offsets, swizzled_shape
from gemmill.vocab.float_type import UE8M0, FloatType
from gemmill.vocab.format import BLOCK_SCALED, Format, ScaleRounding

LARGEST_PRODUCT = 2688.0
"""The largest product of an nvfp4 code and scale: 6 * 448."""


def swizzle(scales: Tensor) -> Tensor:
    """Plain scales [rows, scales] as [rows padded to 128, scales padded to 4] in the swizzled order, padding zero."""
    rows, columns = scales.shape
    padded_rows, padded_columns = shape = swizzled_shape(rows, columns)
    padded = scales.new_zeros(shape)
    padded[:rows, :columns] = scales
    tiles = padded.view(padded_rows // TILE_ROWS, TILE_ROWS // LANES, LANES, padded_columns // TILE_SCALES, TILE_SCALES)
    return tiles.permute(0, 3, 2, 1, 4).reshape(shape)


def unswizzle(swizzled: Tensor, rows: int, columns: int) -> Tensor:
    """Plain scales [rows, columns] of a swizzled tensor of the padded size, in whatever shape. Raises ValueError where the
    size is another."""
    padded_rows, padded_columns = shape = swizzled_shape(rows, columns)
    if swizzled.numel() != padded_rows * padded_columns:
        raise ValueError(
            f"swizzled scales of {rows} rows of {columns} take {padded_rows} x {padded_columns} bytes, got {swizzled.numel()}: "
            f"rows are padded to {TILE_ROWS} and scales of a row to {TILE_SCALES}"
        )
    tiles = swizzled.reshape(
        padded_rows // TILE_ROWS, padded_columns // TILE_SCALES, LANES, TILE_ROWS // LANES, TILE_SCALES
    )
    return tiles.permute(0, 3, 2, 1, 4).reshape(shape)[:rows, :columns]


@dataclass(frozen=True, kw_only=True)
class BlockScaled:
    """A matrix in a block-scaled format, checked. Raises ValueError, in a sentence, for sizes that disagree and for scale
    bytes that mean no number."""

    format: Format
    codes: Tensor
    """uint8 [rows, K * bits / 8], packed."""
    scales: Tensor
    """uint8 [rows, K / group], plain."""

    def __post_init__(self) -> None:
        if self.format not in BLOCK_SCALED:
            known = ", ".join(map(str, BLOCK_SCALED))
            raise ValueError(f"{self.format} has no block scales of one byte: the formats that have are {known}")
        for name, tensor in (("codes", self.codes), ("scales", self.scales)):
            if tensor.dtype is not torch.uint8 or tensor.dim() != 2:
                raise ValueError(
                    f"{name} of {self.format} are {tensor.dtype} of {tensor.dim()} dimensions, expected uint8 of 2: "
                    f"view them as torch.uint8"
                )
        wanted = (self.codes.shape[0], self.format.scale_count(self.k))
        if tuple(self.scales.shape) != wanted:
            raise ValueError(
                f"scales of {self.format} are {list(self.scales.shape)}, expected {list(wanted)} for "
                f"{wanted[0]} rows of K = {self.k}, not swizzled"
            )
        self._refuse_scales()

    @property
    def k(self) -> int:
        """The number of codes of a row."""
        return self.format.k_of(self.codes.shape[1])

    def _refuse_scales(self) -> None:
        if not (wrong := self.scales > self.format.scale.last_code).any():
            return
        row, group = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"scale [{row}, {group}] of {self.format} is byte {int(self.scales[row, group])}, which is no {self.format.scale} "
            f"number: bytes 0 to {self.format.scale.last_code} are"
        )

    def values(self) -> Tensor:
        """code * scale, exact, float64 [rows, K], without the global scale."""
        return products(self.format, self.codes, self.scales)


def products(format: Format, codes: Tensor, scales: Tensor) -> Tensor:
    """code * scale as `BlockScaled.values` has it, of any bytes: NaN where a scale is no number."""
    numbers = decode(unpack(codes, format.code.bits), format.code, torch.float64)
    found: Tensor = grouped(numbers, format.group) * decode(scales, format.scale, torch.float64)[..., None]
    return found.flatten(-2)


def global_scale_of(x: Tensor, *, per_row: bool = False) -> Tensor:
    """2688 / amax of x [rows, K], f32 [1], or [rows, 1]; 1 where all is zero, and always a normal number."""
    if x.numel() == 0:
        return torch.ones((x.shape[0], 1) if per_row else (1,), device=x.device, dtype=torch.float32)
    magnitude = x.float().abs().nan_to_num(nan=0.0, posinf=math.inf)
    amax = magnitude.amax(dim=-1, keepdim=True) if per_row else magnitude.amax().reshape(1)
    scale = torch.full_like(amax, LARGEST_PRODUCT) / amax
    info = torch.finfo(torch.float32)
    return torch.where(amax == 0, 1.0, scale.clamp(info.tiny, info.max))


def check_global_scale(global_scale: Tensor) -> None:
    """Raises ValueError unless every global scale is a finite number above zero."""
    if not (wrong := ~((global_scale > 0) & torch.isfinite(global_scale))).any():
        return
    index = int(wrong.flatten().nonzero()[0])
    raise ValueError(
        f"global scale {index} is {global_scale.flatten()[index].item()}, expected a finite number above zero: "
        f"it is 2688 / largest absolute value, and 1 for a tensor of zeros"
    )


def quantise(
    x: Tensor,
    format: Format,
    *,
    global_scale: Tensor | None = None,
    rounding: ScaleRounding = ScaleRounding.UP,
) -> BlockScaled:
    """x [rows, K] of any float type in a block-scaled format.

    global_scale: f32 [1] or [rows, 1], for nvfp4 and only there. `rounding` is that of mx scales. Raises ValueError for K that
    is no multiple of the group. So it does for a global scale that is missing, superfluous, or no number above zero.
    """
    scales = block_scales(x, format, global_scale=global_scale, rounding=rounding)
    return BlockScaled(format=format, codes=codes_by(x, scales, format, global_scale=global_scale), scales=scales)


def block_scales(
    x: Tensor,
    format: Format,
    *,
    global_scale: Tensor | None = None,
    rounding: ScaleRounding = ScaleRounding.UP,
) -> Tensor:
    """Scales of x, uint8 [rows, K / group], plain; arguments and errors as in quantise."""
    if (global_scale is not None) != format.has_global_scale:
        given, wants = ("no global scale", "needs one") if global_scale is None else ("a global scale", "takes none")
        raise ValueError(f"quantisation to {format} got {given}, and {format} {wants}")
    format.scale_count(x.shape[-1])
    amax = grouped(x.float(), format.group).abs().nan_to_num(nan=0.0, posinf=math.inf).amax(dim=-1)
    if global_scale is None:
        return power_of_two(amax, format.code, rounding)
    check_global_scale(global_scale)
    product = global_scale * amax
    return encode(product / torch.full_like(product, format.code.maximum), format.scale)


def codes_by(x: Tensor, scales: Tensor, format: Format, *, global_scale: Tensor | None = None) -> Tensor:
    """Packed codes of x [rows, K] by known scales; arguments as in quantise."""
    groups = grouped(x.float(), format.group)
    if global_scale is None:
        scaled = groups * two_to(UE8M0.bias - scales.int())[..., None]
    else:
        divisor = decode(scales, format.scale)[..., None]
        scaled = torch.where(divisor == 0, 0.0, groups * global_scale[..., None] / divisor)
    return pack(encode(scaled, format.code).flatten(-2), format.code.bits)


def power_of_two(amax: Tensor, code: FloatType, rounding: ScaleRounding) -> Tensor:
    """ue8m0 bytes of amax f32. It compares exponents with those of the type's largest value, so nothing rounds."""
    fraction, exponent = torch.frexp(amax)
    largest_fraction, largest_exponent = math.frexp(code.maximum)
    exponent = exponent - largest_exponent
    if rounding is ScaleRounding.UP:
        exponent = exponent + (fraction > largest_fraction)
    exponent = torch.where(amax == 0, -UE8M0.bias, exponent)
    exponent = torch.where(torch.isinf(amax), UE8M0.bias, exponent)
    return (exponent.clamp(-UE8M0.bias, UE8M0.bias) + UE8M0.bias).to(torch.uint8)


@dataclass(frozen=True, kw_only=True)
class QuantisedExperts:
    """Rows sorted by expert, quantised."""

    codes: Tensor
    """uint8 [rows, K * bits / 8]."""
    scales: Tensor
    """uint8 [padded rows, padded scales]: each expert's own swizzled tensor, one after another."""
    scale_offsets: Tensor
    """int32 [experts + 1]: the first row of each in `scales`, a multiple of 128, and the end."""


def quantise_experts(
    x: Tensor,
    expert_offsets: Tensor,
    format: Format,
    *,
    global_scales: Tensor | None = None,
    rounding: ScaleRounding = ScaleRounding.UP,
    columns: int | None = None,
    by: Callable[..., BlockScaled] | None = None,
) -> QuantisedExperts:
    """x [rows, K] whose rows expert_offsets[e] to expert_offsets[e + 1] are expert e's; global_scales f32 [experts].

    Rows outside of all experts have zero codes. So are those of columns from K up to `columns`, and their scales. As
    vLLM's kernel for experts. `by` quantises instead of `quantise`, without a rounding. Raises ValueError for offsets
    that descend or lie beyond the rows.
    """
    quantised = by or partial(quantise, rounding=rounding)
    ends, width = expert_offsets.tolist(), x.shape[1] if columns is None else columns
    rows_of = [end - start for start, end in pairwise(ends)]
    if min(rows_of, default=0) < 0 or ends[0] < 0 or ends[-1] > x.shape[0]:
        raise ValueError(f"offsets of experts are {ends}, expected ascending ones from 0 to {x.shape[0]}, the rows")
    offsets = padded_offsets(rows_of)
    codes = torch.zeros(x.shape[0], format.code_bytes(width), dtype=torch.uint8, device=x.device)
    groups = format.scale_count(width)
    swizzled = [codes.new_zeros(0, swizzled_shape(0, groups)[1])]
    for expert, (start, rows) in enumerate(zip(ends[:-1], rows_of, strict=True)):
        of_expert = None if global_scales is None else global_scales[expert].reshape(1)
        part = quantised(x[start : start + rows], format, global_scale=of_expert)
        codes[start : start + rows, : part.codes.shape[1]] = part.codes
        swizzled.append(swizzle(torch.nn.functional.pad(part.scales, (0, groups - part.scales.shape[1]))))
    scale_offsets = torch.tensor(offsets, dtype=torch.int32, device=x.device)
    return QuantisedExperts(codes=codes, scales=torch.cat(swizzled), scale_offsets=scale_offsets)


def checked_scale_offsets(experts: QuantisedExperts, scale_offsets: Tensor, rows: int) -> list[int]:
    """The offsets at which each expert's scales begin, checked.

    Raises ValueError where the scales of two experts overlap, or lie beyond the `rows` that there are.
    """
    starts = scale_offsets.tolist()[:-1]
    sizes = [end - start for start, end in pairwise(experts.scale_offsets.tolist())]
    taken = sorted((start, start + size) for start, size in zip(starts, sizes, strict=True) if size)
    overlap = any(end > start for (_, end), (start, _) in pairwise(taken))
    if overlap or (taken and (taken[0][0] < 0 or taken[-1][1] > rows)):
        raise ValueError(
            f"scales of experts begin at rows {starts} and take {sizes}, expected room for each within {rows} rows: an expert's "
            f"rows are padded to {TILE_ROWS}"
        )
    return starts


def dequantise(x: BlockScaled, *, global_scale: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values [rows, K]. code * scale is exact; a global scale, f32 [1] or [rows, 1], divides in f32, which rounds once;
    then the f32 value rounds to `dtype`. float64 keeps all that is exact. Values beyond f32 are infinite in f32.
    """
    values = x.values()
    if global_scale is not None:
        check_global_scale(global_scale)
        values = values / global_scale.double()
    return values if dtype is torch.float64 else values.float().to(dtype)
