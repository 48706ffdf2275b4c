"""References of the quantisation kernels: the definition of their codes and scales, and the CPU path of the ops.

All arithmetic is f32, every operation rounded on its own (no contraction), and starts from the input's values:

    e4m3(x)   nearest e4m3 value, ties to even, saturated at 448; NaN is 0x7f
    s8(x)     nearest integer, ties to even, saturated to [-128, 127]; NaN is 0
    amax      largest absolute value; NaN elements do not count
    scale_ub  the smaller of it and its operand; NaN bounds nothing

Codes and scales of the kernels equal these bit for bit where both run on the same device. Across devices exp, tanh and
erf differ by an ulp or two. A gated code may then differ where its quotient lies that close to a boundary between
codes: see docs/quant.md. No code here divides by a Python number: torch multiplies by its reciprocal.
"""

import math
from dataclasses import dataclass

import torch

from gemmill.families.quant.config import Activation, ScaleFormat
from gemmill.formats.fp4_blocks import Fp4Blocks
from gemmill.formats.quantise import dequantise, quantise
from gemmill.formats.vllm_blocks import quantise_as_vllm
from gemmill.vocab import DType, Format
from gemmill.vocab.format import NVFP4, ScaleRounding

CODE_MAX = {DType.E4M3: 448.0, DType.S8: 127.0}
SMALLEST_SCALE = {DType.E4M3: 1.0 / (448.0 * 512.0), DType.S8: 2.0**-23}
_SMALLEST_UE8M0_SCALE = 1e-10
_CANONICAL_NAN, _LARGEST, _LOWEST = 0x7F, 0x7E, 0xFE
"""e4m3 codes of NaN: ours, and the result of vLLM's bounds on it. That is 448, or -448 in groups."""
_FLT_MAX = torch.finfo(torch.float32).max


def activated(x: torch.Tensor, activation: Activation, *, contracted: bool = False) -> torch.Tensor:
    """x [rows, hidden] of any float type as f32, after an activation.

    With a gated activation, x is [rows, 2 hidden], gate, then up, and the result is activation(gate) * up. `contracted`
    is of GELU.
    """
    if activation.is_gated:
        gate, up = x.float().chunk(2, dim=-1)
        if activation is Activation.SILU:
            return gate * torch.reciprocal(1.0 + torch.exp(-gate)) * up
        return gelu(gate, by_tanh=activation is Activation.GELU_TANH) * up
    if activation is Activation.NONE:
        return x.float()
    return gelu(x.float(), by_tanh=activation is Activation.ONLY_GELU_TANH, contracted=contracted)


def gelu(x: torch.Tensor, *, by_tanh: bool, contracted: bool = False) -> torch.Tensor:
    """GELU of f32 values: with erf, or with the tanh that is close to it.

    `contracted`, the argument of tanh takes a product and a sum rounded once, as compilers make it of torch's formula.
    """
    if by_tanh:
        cube, factor = x * x * x, torch.full_like(x, 0.044715)
        inner = fused_product(cube, factor, x) if contracted else x + factor * cube
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * inner))
    return 0.5 * x * (1.0 + torch.erf(x * 0.7071067811865476))


def modulated(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """x * (1 + scale) + shift of x [rows, hidden] in f32; scale and shift are [rows, hidden] or [1, hidden]."""
    return x.float() * (1.0 + scale.float()) + shift.float()


def divided_silu(gate: torch.Tensor) -> torch.Tensor:
    """gate / (1 + exp(-gate)) of f32 values."""
    return gate / (1.0 + torch.exp(-gate))


def silu_as_vllm(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of x [rows, 2 hidden], which is gate, then up, in f32.

    silu(gate) is a quotient. It and the product both round to x's type, as in vLLM's silu_and_mul_quant.
    """
    gate, up = x.float().chunk(2, dim=-1)
    return rounded_product(divided_silu(gate), up, x.dtype)


def product_as_vllm(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """The values that vLLM's kernels of block-scaled formats code for x, f32: x, or silu(gate) * up, whose product
    alone rounds to x's type.
    """
    if activation is Activation.NONE:
        return x.float()
    gate, up = x.float().chunk(2, dim=-1)
    return (divided_silu(gate) * up).to(x.dtype).float()


def rounded_product(silu: torch.Tensor, up: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """silu, rounded to `dtype`, times up, rounded again; f32."""
    return (silu.to(dtype).float() * up).to(dtype).float()


def encode(x: torch.Tensor, out_dtype: DType, nan: int = _CANONICAL_NAN) -> torch.Tensor:
    """Codes of f32 values, as float8_e4m3fn or int8; `nan` is the e4m3 code of NaN."""
    if out_dtype is DType.S8:
        return torch.nan_to_num(torch.round(x).clamp(-128.0, 127.0), nan=0.0).to(torch.int8)
    codes = x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return codes.view(torch.uint8).masked_fill_(torch.isnan(x), nan).view(torch.float8_e4m3fn)


def encode_truncated(x: torch.Tensor) -> torch.Tensor:
    """s8 codes of f32 values, saturated and cut off towards zero, as vLLM's of groups; NaN is -128."""
    return torch.nan_to_num(x.clamp(-128.0, 127.0), nan=-128.0).to(torch.int8)


def encode_with_azp(x: torch.Tensor, azp: torch.Tensor, *, wraps: bool = False) -> torch.Tensor:
    """s8 codes of f32 values whose zero lies at code `azp` (s32).

    Both steps saturate. Or the sum wraps in 32 bits, as vLLM's does.
    """
    low, high = torch.iinfo(torch.int32).min, torch.iinfo(torch.int32).max
    rounded = torch.nan_to_num(torch.round(x), nan=0.0).double().clamp(low, high).long()
    codes = rounded + azp.long()
    return ((codes - low) % 2**32 + low if wraps else codes).clamp(-128, 127).to(torch.int8)


def absolute_maximum(x: torch.Tensor, of_nan: float = 0.0) -> torch.Tensor:
    """The largest absolute value along the last dimension, which is kept with size 1.

    It is 0 where the dimension is empty, and `of_nan` where all its values are NaN.
    """
    if x.shape[-1] == 0:
        return x.new_zeros((*x.shape[:-1], 1))
    amax = torch.nan_to_num(x.abs(), nan=0.0, posinf=float("inf")).amax(dim=-1, keepdim=True)
    return amax.masked_fill(torch.isnan(x).all(dim=-1, keepdim=True), of_nan)


def divide(x: torch.Tensor, divisor: float) -> torch.Tensor:
    """x / divisor, correctly rounded."""
    return x / torch.full_like(x, divisor)


def round_up_to_power_of_two(scale: torch.Tensor) -> torch.Tensor:
    """The smallest power of two that is at least each f32 scale, and at least 1e-10; infinity stays."""
    bits = scale.clamp_min(_SMALLEST_UE8M0_SCALE).view(torch.int32)
    return ((bits + 0x007FFFFF) & 0x7F800000).view(torch.float32)


def round_up_by_logarithm(scale: torch.Tensor) -> torch.Tensor:
    """2^ceil(log2(scale)) of f32 scales, the logarithm rounded to f32, as vLLM's of f32 rows.

    Some units in the last place above a power of two, the result is still that power.
    """
    return torch.exp2(torch.ceil(torch.log2(scale.clamp_min(_SMALLEST_UE8M0_SCALE).double()).float()))


def pack_ue8m0(scales: torch.Tensor) -> torch.Tensor:
    """Powers of two f32 [rows, groups] as words s32 [rows, ceil(groups / 4)] with strides (1, rows padded to 4).

    A word has four biased exponents, the first group's in the low byte. An exponent is zero where there is no group.
    """
    rows, groups = scales.shape
    exponents = scales.contiguous().view(torch.int32) >> 23
    exponents = torch.nn.functional.pad(exponents, (0, -groups % 4)).view(rows, -1, 4).to(torch.uint8)
    words = exponents.view(torch.int32)[..., 0]
    out = scales.new_zeros((words.shape[1], -(-rows // 4) * 4), dtype=torch.int32)
    out[:, :rows] = words.t()
    return out.t()[:rows]


def least_step_of(hidden: int) -> torch.Tensor:
    """The least scale, in f32, as a share of a row's largest absolute value, where a GEMM multiplies all `hidden` codes
    of it.

    It keeps |x / scale| times 128 times hidden below 2^31 - 2^27. So the GEMM's sums without the zero point's share fit
    32 bits.
    """
    return torch.tensor(float(hidden), dtype=torch.float32, device="cpu") * torch.tensor(
        1.0 / 15728640.0, dtype=torch.float32, device="cpu"
    )


def _asymmetric(
    low: torch.Tensor, high: torch.Tensor, least_step: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scale, its reciprocal and zero point such that `low` has code -128; a range of one value has symmetric codes."""
    single = low == high
    scale = divide(high - low, 255.0)
    if least_step is not None:
        scale = torch.fmax(scale, torch.maximum(low.abs(), high.abs()) * least_step.to(low.device))
    reciprocal = torch.reciprocal(scale)
    azp = torch.nan_to_num(torch.round(-128.0 - low / scale), nan=0.0)
    amax = low.abs()
    scale = torch.where(single, divide(amax, 127.0), scale)
    symmetric = torch.where(amax == 0, amax, torch.full_like(amax, 127.0) / amax)
    reciprocal = torch.where(single, symmetric, reciprocal)
    limits = torch.iinfo(torch.int32)
    azp = torch.where(single, torch.zeros_like(azp), azp).double().clamp(limits.min, limits.max).to(torch.int32)
    return scale, reciprocal, azp


def _asymmetric_as_vllm(low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scale, its reciprocal and zero point by vLLM's formula.

    A range of one value has scale 0, and its zero point saturates to 32 bits. A range of nothing counts as that from
    the largest to the lowest number.
    """
    low, high = low.clamp_max(_FLT_MAX), high.clamp_min(-_FLT_MAX)
    scale = divide(high - low, 255.0)
    limits = torch.iinfo(torch.int32)
    azp = torch.nan_to_num(torch.round(-128.0 - low / scale), nan=0.0).double().clamp(limits.min, limits.max)
    return scale, torch.reciprocal(scale), azp.to(torch.int32)


def _extent(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    nan = torch.isnan(x)
    low = x.masked_fill(nan, float("inf")).amin(dim=-1, keepdim=True)
    high = x.masked_fill(nan, float("-inf")).amax(dim=-1, keepdim=True)
    return low, high


def static_quant(
    x: torch.Tensor,
    scales: torch.Tensor,
    out_dtype: DType,
    *,
    azp: torch.Tensor | None = None,
    activation: Activation = Activation.NONE,
    vllm: bool = False,
) -> torch.Tensor:
    """Codes of x [rows, hidden] (or [rows, 2 hidden]) by scales f32 that broadcast to [rows, hidden].

    e4m3, and s8 with a zero point, multiply by the scale's reciprocal; symmetric s8 divides by the scale (as vLLM).
    """
    values = silu_as_vllm(x) if vllm and activation is Activation.SILU else activated(x, activation)
    if out_dtype is DType.S8 and azp is None:
        return encode(values / scales, out_dtype)
    values = values * torch.reciprocal(scales)
    return encode(values, out_dtype, _nan(vllm)) if azp is None else encode_with_azp(values, azp, wraps=vllm)


def _nan(vllm: bool) -> int:
    return _LARGEST if vllm else _CANONICAL_NAN


def tensor_quant(x: torch.Tensor, out_dtype: DType, *, vllm: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of x and its scale [1] = max(amax / max, smallest scale). It multiplies by the reciprocal, as vLLM does.

    vLLM's scales have no smallest: zeros have scale 0, and 0 * infinity is NaN.
    """
    amax = absolute_maximum(x.float().reshape(1, -1))[0]
    scale = divide(amax, CODE_MAX[out_dtype]).clamp_min(0.0 if vllm else SMALLEST_SCALE[out_dtype])
    return encode(x.float() * torch.reciprocal(scale), out_dtype, _nan(vllm)), scale


def tensor_quant_with_azp(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """s8 codes of x, its scale [1] and its zero point s32 [1], coded as token_quant_with_azp codes a row.

    An empty tensor has scale and zero point 0.
    """
    codes, scale, azp = token_quant_with_azp(x.reshape(1, -1), least_step_of(x.shape[-1]))
    return codes.reshape(x.shape), scale[0], azp[0]


def token_quant(
    x: torch.Tensor,
    out_dtype: DType,
    *,
    scale_ub: torch.Tensor | None = None,
    activation: Activation = Activation.NONE,
    vllm: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of x [rows, hidden] (or [rows, 2 hidden]) and scales [rows, 1].

    scale = max(min(amax, scale_ub) / max, smallest scale), by which values are divided. Plain s8 is as vLLM's op. The
    scale is amax / 127 with no smallest one, and the factor of values is 127 / amax (0 for a row of zeros).
    """
    values = activated(x, activation)
    amax = absolute_maximum(values)
    if scale_ub is not None:
        amax = torch.fmin(amax, scale_ub)
    scale = divide(amax, CODE_MAX[out_dtype])
    if out_dtype is DType.S8 and activation is Activation.NONE:
        reciprocal = torch.where(amax == 0, amax, torch.full_like(amax, 127.0) / amax)
        return encode(values * reciprocal, out_dtype), scale
    scale = scale.clamp_min(SMALLEST_SCALE[out_dtype])
    return encode(values / scale, out_dtype, _nan(vllm)), scale


def token_quant_with_azp(
    x: torch.Tensor, least_step: torch.Tensor | None = None, *, vllm: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """s8 codes of x [rows, hidden], scales [rows, 1] and zero points s32 [rows, 1].

        scale = max((high - low) / 255, least_step max(|low|, |high|))
        azp = rint(-128 - low / scale)
        code = rint(x * (1 / scale)) + azp

    `least_step` is that of the rows' GEMM, None for none; vLLM has none. Rows without elements have scale and zero
    point 0.
    """
    values = x.float()
    if values.shape[-1] == 0:
        scale = values.new_zeros((*x.shape[:-1], 1))
        return x.to(torch.int8), scale, scale.int()
    extent = _extent(values)
    scale, reciprocal, azp = _asymmetric_as_vllm(*extent) if vllm else _asymmetric(*extent, least_step)
    return encode_with_azp(values * reciprocal, azp, wraps=vllm), scale, azp


def group_quant(
    x: torch.Tensor,
    group_size: int,
    out_dtype: DType,
    *,
    smallest_amax: float = 0.0,
    smallest_scale: float = 0.0,
    scale_ub: torch.Tensor | None = None,
    scale_format: ScaleFormat = ScaleFormat.F32,
    activation: Activation = Activation.NONE,
    vllm: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of x [rows, hidden] (or [rows, 2 hidden]) and scales f32 [rows, hidden / group_size], row-major.

        scale = max(min(max(amax, smallest_amax) / max, scale_ub), smallest_scale)

    Scales round up to a power of two unless `scale_format` is F32; pack_ue8m0 packs them. They divide the values. vLLM
    multiplies by the reciprocal of scales without an activation. It bounds with NaN as -448 or -128, and cuts s8 codes
    off.
    """
    values = activated(x, activation)
    rows, hidden = values.shape
    grouped = values.reshape(rows, hidden // group_size, group_size)
    gated = activation is not Activation.NONE
    amax = (
        absolute_maximum(grouped, torch.nan) if vllm and gated else absolute_maximum(grouped).clamp_min(smallest_amax)
    )
    scale = divide(amax, CODE_MAX[out_dtype])
    if scale_ub is not None:
        scale = torch.fmin(scale, scale_ub)
    scale = torch.fmax(scale, torch.full_like(scale, smallest_scale))
    if scale_format is not ScaleFormat.F32:
        by_logarithm = vllm and scale_format is ScaleFormat.POWER_OF_TWO and x.dtype is torch.float32
        scale = round_up_by_logarithm(scale) if by_logarithm else round_up_to_power_of_two(scale)
    if not vllm or gated:
        codes = encode(grouped / scale, out_dtype, _nan(vllm))
    elif out_dtype is DType.S8:
        codes = encode_truncated(grouped * torch.reciprocal(scale))
    else:
        codes = encode(grouped * torch.reciprocal(scale), out_dtype, _LOWEST)
    return codes.reshape(rows, hidden), scale[..., 0]


def block_quant(
    x: torch.Tensor,
    format: Format,
    *,
    global_scale: torch.Tensor | None = None,
    rounding: ScaleRounding = ScaleRounding.UP,
    activation: Activation = Activation.NONE,
    modulation: tuple[torch.Tensor, torch.Tensor] | None = None,
    rounded: bool = False,
    vllm: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed codes [rows, bytes] and plain scales [rows, groups], both uint8, of x [rows, hidden] (or [rows, 2
    hidden]).

    gemmill.formats.quantise defines both, and gemmill.formats.vllm_blocks vLLM's. `modulation` is scale and shift.
    `rounded` results of GELU or modulation round to x's type first, as LightX2V's and torch's do. Raises ValueError for
    a global scale that is no finite number above zero.
    """
    if vllm:
        of_vllm = quantise_as_vllm(product_as_vllm(x, activation), format, global_scale=global_scale)
        return of_vllm.codes, of_vllm.scales
    values = activated(x, activation, contracted=rounded) if modulation is None else modulated(x, *modulation)
    values = values.to(x.dtype).float() if rounded else values
    found = quantise(values, format, global_scale=global_scale, rounding=rounding)
    return found.codes, found.scales


def group_quant_with_azp(x: torch.Tensor, group_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """s8 codes of x [rows, hidden], scales f32 and zero points s32 [rows, hidden / group_size].

    token_quant_with_azp of a row defines the codes of each group.
    """
    rows, hidden = x.shape
    codes, scale, azp = token_quant_with_azp(x.reshape(-1, group_size))
    return codes.reshape(rows, hidden), scale.reshape(rows, -1), azp.reshape(rows, -1)


@dataclass(frozen=True, kw_only=True)
class VllmSum:
    """How vLLM sums the squares of a row."""

    threads: int
    """Threads of a CTA. Each sums its elements in f32, where a product and a sum round once."""
    width: int
    """Neighbouring elements that a thread takes at a time."""
    in_pairs: bool = False
    """Whether a thread first sums each of its loads alone, in pairs."""

    @classmethod
    def of_rows(cls, rows: int, hidden: int, *, stride: int, group_size: int) -> "VllmSum":
        """vLLM's sum of rows that lie `stride` elements apart.

        In vLLM's batch-invariant mode, rows with groups have 512 threads.
        """
        most = 1024 if not group_size else 512 if rows <= 256 else 256
        return cls(threads=min(hidden, most), width=4 if group_size or (hidden % 4 == 0 and stride % 4 == 0) else 1)

    @classmethod
    def by_given_scale(cls, rows: int, hidden: int, *, stride: int, most_width: int, with_residual: bool) -> "VllmSum":
        """vLLM's sum of rows that a given scale codes.

        A thread takes 16 bytes at a time, or a divisor of the row. With a residual it takes 8 elements, or one. It
        assumes that vLLM's addresses of a residual are multiples of 16 bytes.
        """
        most = 1024 if rows < 256 else 256
        if with_residual:
            in_pairs = hidden % 8 == 0 and stride % 8 == 0
            return cls(threads=min(hidden, most), width=8 if in_pairs else 1, in_pairs=in_pairs)
        width = math.gcd(most_width, hidden)
        return cls(threads=min(hidden // width, most), width=width)


def _inverse_rms_as_vllm(values: torch.Tensor, epsilon: float, how: VllmSum) -> torch.Tensor:
    """1 / rms of f32 rows, by vLLM's order of sums and the device's rsqrt.

    The order is threads first, then neighbours within warps, then warps one after another.
    """
    rows, hidden = values.shape
    turns = torch.nn.functional.pad(values, (0, -hidden % max(how.threads * how.width, 1)))
    of_threads = values.new_zeros((rows, how.threads))
    for turn in turns.reshape(rows, -1, how.threads, how.width).unbind(1) if hidden else ():
        if how.in_pairs:
            pairs = fused_product(turn[..., ::2], turn[..., ::2], turn[..., 1::2] * turn[..., 1::2])
            of_threads = of_threads + (((pairs[..., 0] + pairs[..., 1]) + pairs[..., 2]) + pairs[..., 3])
            continue
        for x in turn.unbind(-1):
            of_threads = fused_product(x, x, of_threads)
    lanes = torch.nn.functional.pad(of_threads, (0, -how.threads % 32)).unflatten(-1, (-1, 32))
    while lanes.shape[-1] > 1:
        lanes = lanes[..., ::2] + lanes[..., 1::2]
    total = values.new_zeros((rows, 1))
    for warp in lanes.unbind(1):
        total = total + warp
    return torch.rsqrt(divide(total, float(hidden)) + torch.tensor(epsilon, dtype=torch.float32, device=values.device))


def fused_product(x: torch.Tensor, y: torch.Tensor, plus: torch.Tensor) -> torch.Tensor:
    """x * y + plus of f32, rounded once: the sum in f64 rounds to odd, so that rounding it again does no harm."""
    product, addend = x.double() * y.double(), plus.double()
    total = product + addend
    rest = total - product
    error = (product - (total - rest)) + (addend - rest)
    even = (total.view(torch.int64) & 1) == 0
    odd = torch.nextafter(total, torch.where(error > 0, torch.inf, -torch.inf).to(total))
    return torch.where(torch.isfinite(total) & (error != 0) & even, odd, total).float()


def _inverse_rms(values: torch.Tensor, epsilon: float, run: int) -> torch.Tensor:
    hidden = values.shape[-1]
    runs = torch.nn.functional.pad(values * values, (0, -hidden % run)).unflatten(-1, (-1, run))
    while runs.shape[-1] > 1:
        runs = runs[..., ::2] + runs[..., 1::2]
    epsilon_f32 = float(torch.tensor(epsilon, dtype=torch.float32, device="cpu"))
    mean = (sum_in_any_order(runs[..., 0]) * (1.0 / max(hidden, 1)) + epsilon_f32).float()
    return torch.reciprocal(torch.sqrt(mean.double())).float()


def sum_in_any_order(values: torch.Tensor) -> torch.Tensor:
    """Sums [rows, 1] in f64 of nonnegative f32 values [rows, n], the same whatever the order of values.

    It adds values as integers, those of eight neighbouring exponents together, which is exact. The sums of the 32
    octets round to f64 and add up by halves. Infinities and NaN have the same sum in any order.
    """
    bits = values.contiguous().view(torch.int32).to(torch.int64)
    exponents, fractions = bits >> 23 & 0xFF, bits & 0x7FFFFF
    whole = torch.where(exponents == 0, fractions, fractions | 0x800000)
    places = exponents.clamp_min(1)
    octets = bits.new_zeros((*values.shape[:-1], 32)).scatter_add(-1, places >> 3, whole << (places & 7))
    units = torch.tensor([2.0 ** (8 * octet - 150) for octet in range(32)], dtype=torch.float64, device=values.device)
    sums = octets.double() * units
    while sums.shape[-1] > 1:
        sums = sums[..., : sums.shape[-1] // 2] + sums[..., sums.shape[-1] // 2 :]
    return torch.where(
        torch.isfinite(values).all(dim=-1, keepdim=True), sums, values.double().sum(dim=-1, keepdim=True)
    )


def rms_normed(
    x: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    residual: torch.Tensor | None = None,
    vllm: VllmSum | None = None,
    rounds_once: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """round(round(x / rms) * weight) of x [rows, hidden] in x's type, and the new residual, None without one.

    `rounds_once` leaves the inner rounding out. With a residual, x + residual in f32 takes x's place, unrounded. The
    new residual is that sum, rounded. With `rounds_once` the rest is made of the rounded one.

    The mean square sums runs of 16 bytes of x in f32: `((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))`. `sum_in_any_order`
    sums the runs. The sum rounds to f32 after the addition of epsilon, an f32. 1 / rms is its correctly rounded inverse
    square root.
    """
    values = x.float()
    added = None
    if residual is not None:
        values = values + residual.float()
        added = values.to(x.dtype)
        values = added.float() if rounds_once else values
    inverse = (
        _inverse_rms(values, epsilon, 16 // x.element_size())
        if vllm is None
        else _inverse_rms_as_vllm(values, epsilon, vllm)
    )
    normed = values * inverse if rounds_once else (values * inverse).to(x.dtype)
    return (normed.float() * weight.float()).to(x.dtype), added


def rms_norm_quant(
    x: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    out_dtype: DType,
    *,
    group_size: int = 0,
    scale: torch.Tensor | None = None,
    scale_ub: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    vllm_stride: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Codes of the RMS norm of x [rows, hidden], scales [rows, 1] or [rows, hidden / group_size], and the new residual.

        scale = max(min(amax, scale_ub) / max, smallest scale)

    e4m3 divides by the scale. s8 multiplies by its reciprocal, as do all codes of vLLM's groups. By a `scale` that is
    given, f32 [1], codes are those of static_quant. `vllm_stride` is the elements between the rows of vLLM's input, on
    which its sums depend. Without one the arithmetic is ours.
    """
    rows, hidden = x.shape
    vllm = None if vllm_stride is None else VllmSum.of_rows(rows, hidden, stride=vllm_stride, group_size=group_size)
    if vllm_stride is not None and scale is not None:
        vllm = VllmSum.by_given_scale(
            rows, hidden, stride=vllm_stride, most_width=16 // x.element_size(), with_residual=residual is not None
        )
    once = vllm is not None and scale is not None
    normed, added = rms_normed(x, weight, epsilon, residual, vllm, rounds_once=once)
    if scale is not None:
        return static_quant(normed, scale, out_dtype, vllm=vllm is not None), scale, added
    grouped = normed.float().reshape(rows, hidden // group_size if group_size else 1, group_size or hidden)
    amax = absolute_maximum(grouped)
    if scale_ub is not None:
        amax = torch.fmin(amax, scale_ub)
    scale = divide(amax, CODE_MAX[out_dtype]).clamp_min(SMALLEST_SCALE[out_dtype])
    divided = out_dtype is DType.E4M3 and (vllm is None or not group_size)
    scaled = grouped / scale if divided else grouped * torch.reciprocal(scale)
    return encode(scaled, out_dtype, _nan(vllm is not None)).reshape(rows, hidden), scale[..., 0], added


def weight_dequant(blocks: torch.Tensor, n: int, k: int) -> torch.Tensor:
    """The bf16 values [n, k] of packed nvfp4 weights, uint8 [n / 64, k / 64, 2304] rounded up: code * scale, which is exact."""
    base = torch.ones(n, dtype=torch.float32, device=blocks.device)
    weights, _ = Fp4Blocks(format=NVFP4, n=n, k=k, blocks=blocks, base=base).weights()
    return dequantise(weights, dtype=torch.bfloat16)
