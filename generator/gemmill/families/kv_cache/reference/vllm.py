"""The arithmetic of vLLM 0.33.0's cache formats, bit for bit where vLLM's own is defined to the bit.

All of it is float32. Three things in vLLM's kernels are undefined in their last bits. The first is cuBLAS's order of
sums in the rotation of TurboQuant's keys. The second is UltraQuant's logarithm. The third is the division of values by
their scale, which Triton compiles to an approximation of two units in the last place. A code may then differ where its
value lies within a rounding of a boundary. Here the rotation rounds once from float64, the division is correctly
rounded, the logarithm is torch's.

vLLM loses a NaN where a NaN value becomes code 0 of finite neighbours. Here it stays visible: zero, or the scale byte
255, is NaN. Sources: `v1/attention/ops/triton_turboquant_store.py`, `triton_turboquant_decode.py`,
`turboquant_soa/triton_turboquant_store.py`, `ultraquant/triton_store.py` and `ultraquant/format.py`.
"""

import torch
from torch import Tensor

from gemmill.arithmetic import grouped
from gemmill.families.kv_cache.formats import E2M1_GROUP, Method, VectorSpec
from gemmill.families.kv_cache.reference.bits import pack_codes, pack_float16, unpack_codes, unpack_float16
from gemmill.families.kv_cache.reference.rotations import rotate
from gemmill.families.kv_cache.vllm_codebooks import vllm_codebook
from gemmill.vocab.float_type import E2M1

_E4M3_MAX = 448.0
_E4M3_NAN = 0x7F
_LEAST_SCALE = 1e-8
_NORM_FLOOR = 1e-8
_UNIT_FLOOR = 1e-16
_E2M1_MAGNITUDES = E2M1.values[:8]
_E2M1_SCALE = 0.156
"""The scale of a group, as a share of its largest magnitude, before it rounds to a power of two."""
_UE8M0_BIAS = 127
_UE8M0_NAN = 255


def compress(x: Tensor, spec: VectorSpec) -> dict[str, Tensor]:
    """Fields of float32 vectors [..., d] by one of vLLM's methods."""
    match spec.format.method:
        case Method.UNIFORM:
            return _compress_uniform(x, spec)
        case Method.E4M3:
            return {"codes": _to_e4m3(x)}
        case Method.E2M1:
            return _compress_e2m1(_rotate(x, spec))
        case _:
            return _compress_centroids(x, spec)


def decode(fields: dict[str, Tensor], spec: VectorSpec, dtype: torch.dtype) -> Tensor:
    """Stored vectors [..., d] in `dtype`, in the basis of their storage."""
    codes = unpack_codes(fields["codes"], spec.format.code_bits, spec.head_dim)
    match spec.format.method:
        case Method.UNIFORM:
            scale, zero = (unpack_float16(fields[name], dtype)[..., None] for name in ("scale", "zero"))
            return codes.to(dtype) * scale + zero
        case Method.E4M3:
            return codes.to(torch.uint8).view(torch.float8_e4m3fn).to(dtype)
        case Method.E2M1:
            return _decode_e2m1(codes, fields["scales"], dtype)
        case Method.FOLDED_CENTROIDS:
            return _centroids(spec, codes).to(dtype)[codes] * unpack_float16(fields["norm"], dtype)[..., None]
        case _:
            centroids = _centroids(spec, codes).to(dtype)[codes]
            unit = centroids / (centroids.square().sum(-1, keepdim=True) + _UNIT_FLOOR).sqrt()
            return unit * unpack_float16(fields["norm"], dtype)[..., None]


def _compress_centroids(x: Tensor, spec: VectorSpec) -> dict[str, Tensor]:
    norm = x.double().square().sum(-1).sqrt().float()
    rotated = _rotate(x / (norm + _NORM_FLOOR)[..., None], spec)
    boundaries = torch.tensor(
        vllm_codebook(spec.head_dim, spec.format.bits).boundaries, dtype=torch.float32, device=x.device
    )
    codes = (rotated[..., None] >= boundaries).sum(-1)
    if spec.format.method is Method.FOLDED_CENTROIDS:
        squares = _centroids(spec, codes)[codes].square().sum(-1)
        norm = norm * (1.0 / (squares + _UNIT_FLOOR).sqrt())
    return {"codes": pack_codes(codes, spec.format.bits), "norm": pack_float16(norm)}


def _compress_uniform(x: Tensor, spec: VectorSpec) -> dict[str, Tensor]:
    """Codes, scale and zero of vLLM's values.

    The float32 scale decides on a code, but the field holds the float16 one. Truncation follows the addition of a half.
    """
    largest_code = (1 << spec.format.bits) - 1
    zero = x.amin(-1)
    # A tensor as divisor: torch multiplies by the reciprocal of a number.
    scale = (x.amax(-1) - zero) / torch.tensor(float(largest_code), device=x.device, dtype=torch.float32)
    scale = torch.where(scale > _LEAST_SCALE, scale, _LEAST_SCALE)
    steps = (x - zero[..., None]) / scale[..., None] + 0.5
    codes = steps.nan_to_num(nan=0.0).clamp(0, largest_code).trunc()
    return {
        "codes": pack_codes(codes, spec.format.bits),
        "scale": pack_float16(scale),
        "zero": pack_float16(zero),
    }


def _to_e4m3(x: Tensor) -> Tensor:
    """Codes of e4m3: the nearest value, ties to even, saturated; NaN is 0x7f."""
    codes = x.clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)
    return codes.masked_fill(torch.isnan(x), _E4M3_NAN)


def _compress_e2m1(x: Tensor) -> dict[str, Tensor]:
    """Codes and scales of UltraQuant: the scale of each 32 is 2^floor(log2(0.156 absmax) + 1/2).

    A value halfway between two codes takes the lower one.
    """
    groups = grouped(x, E2M1_GROUP)
    largest = groups.abs().amax(-1)
    scaled = largest * torch.tensor(_E2M1_SCALE, dtype=torch.float32, device=x.device)
    exponent = torch.floor(torch.log2(torch.where(largest == 0, 1.0, scaled)) + 0.5)
    quotient = groups / torch.exp2(exponent)[..., None]
    levels = torch.tensor(
        [-v for v in _E2M1_MAGNITUDES[:0:-1]] + list(_E2M1_MAGNITUDES), dtype=torch.float32, device=x.device
    )
    middles = (levels[:-1] + levels[1:]) / 2
    ranks = (quotient[..., None] > middles).sum(-1)
    zero_rank = len(_E2M1_MAGNITUDES) - 1
    ranks = torch.where((largest == 0)[..., None], zero_rank, ranks)
    codes = torch.where(ranks < zero_rank, 2 * zero_rank + 1 - ranks, ranks - zero_rank)
    scales = exponent + _UE8M0_BIAS
    scales = torch.where((largest == 0) | (scales < 0), 0.0, scales)
    scales = torch.where(torch.isfinite(largest), scales, _UE8M0_NAN)
    return {"codes": pack_codes(codes.flatten(-2), 4), "scales": scales.to(torch.uint8)}


def _decode_e2m1(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Values of UltraQuant's codes. Scale byte 0 is zero and 255 is NaN; else a byte stands for 2^(byte - 127)."""
    values = grouped(torch.tensor(E2M1.values, dtype=dtype, device=codes.device)[codes], E2M1_GROUP)
    factors = torch.exp2(scales.to(dtype) - _UE8M0_BIAS)
    factors = torch.where(scales == 0, 0.0, factors)
    factors = torch.where(scales == _UE8M0_NAN, torch.nan, factors)
    return (values * factors[..., None]).reshape(codes.shape)


def _rotate(x: Tensor, spec: VectorSpec) -> Tensor:
    return rotate(x.double(), spec.rotation, spec.seed).float()


def _centroids(spec: VectorSpec, codes: Tensor) -> Tensor:
    book = vllm_codebook(spec.head_dim, spec.format.bits)
    return torch.tensor(book.centroids, dtype=torch.float32, device=codes.device)
