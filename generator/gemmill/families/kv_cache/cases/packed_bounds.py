"""How far kernels of packed vectors may be from the reference: bytes that they write, vectors and scores they make.

The roundings are those of `bounds`. vLLM's values are bytes of float32 arithmetic with one right result, so they must
be equal. So must codes of e4m3. vLLM's rotated keys may have the rotation's losses, as ours may. UltraQuant's scale has
a logarithm, which near a whole number may be off by a part in 2^20 of itself.
"""

import torch
from torch import Tensor

from gemmill.arithmetic import FLOAT32_UNIT, grouped, half_unit_in_last_place
from gemmill.families.kv_cache.bounds import F16, WEIGHT_SHARE, outside, rotation_loss, score_loss, sum_loss
from gemmill.families.kv_cache.codebooks import Codebook
from gemmill.families.kv_cache.formats import E2M1_GROUP, OWN_METHODS, Method, RotationKind, VectorSpec
from gemmill.families.kv_cache.reference.bits import unpack_codes, unpack_float16
from gemmill.families.kv_cache.reference.rotations import projection, rotate
from gemmill.families.kv_cache.reference.vectors import (
    Fields,
    assemble,
    compress,
    decode,
    has_signs,
    joined,
    transformed_queries,
)
from gemmill.families.kv_cache.vllm_codebooks import vllm_codebook
from gemmill.vocab.float_type import E2M1

_LOG_SLACK = 2.0**-18
_TWO_STEPS, _NEARLY_INFINITE = 2.0**-23, 60000.0
"""Two of float16's smallest steps, and a norm near its largest number.

A norm may round to 0 or to infinity where the reference's does not.
"""
_UE8M0_BIAS = 127
_E2M1_SHARE = 0.156


def wrong_bytes(found: Fields, x: Tensor, spec: VectorSpec) -> int:
    """How many elements of the fields of packed vectors no arithmetic that a kernel may do explains.

    `x` [..., head_dim] were packed. For an infinite or NaN vector, only its mark counts.
    """
    method, wanted = spec.format.method, compress(x.double(), spec)
    is_finite = torch.isfinite(x.double()).all(-1)
    if method in OWN_METHODS or method is Method.UNIT_CENTROIDS:
        return _wrong_of_centroids(found, wanted, x.double(), spec, is_finite)
    if method is Method.E2M1:
        lost = _marked(found["scales"], ~is_finite)
        return lost + _wrong_e2m1(_where(found, is_finite), x[is_finite].double(), spec)
    same_nan = torch.ones_like(is_finite) if method is Method.E4M3 else is_finite
    count = sum(int((field[same_nan] != wanted[name][same_nan]).sum()) for name, field in found.items())
    if method is Method.UNIFORM:
        scale, zero = (unpack_float16(found[name], torch.float64)[~is_finite] for name in ("scale", "zero"))
        count += int((torch.isfinite(scale) & torch.isfinite(zero)).sum())
    return count


def _wrong_of_centroids(found: Fields, wanted: Fields, x: Tensor, spec: VectorSpec, is_finite: Tensor) -> int:
    """How many codes and norms of centroids' formats are wrong. Codes of a vector whose norm is 0 or not finite mean
    nothing."""
    norm, expected = (unpack_float16(fields["norm"], torch.float64) for fields in (found, wanted))
    means = is_finite & (expected > 0) & torch.isfinite(expected) & (norm > 0) & torch.isfinite(norm)
    is_off = ((norm - expected).abs() > _TWO_STEPS) & ~(torch.minimum(norm, expected) > _NEARLY_INFINITE)
    count = int(torch.isfinite(norm[~is_finite]).sum()) + int(is_off[is_finite & ~means].sum())
    kept, x = _where(found, means), x[means]
    if spec.format.method in OWN_METHODS:
        return count + sum(outside(kept, x, spec))
    return count + _wrong_units(kept, x, spec, vllm_codebook(spec.head_dim, spec.format.bits))


def _wrong_units(found: Fields, x: Tensor, spec: VectorSpec, book: Codebook) -> int:
    norm = x.square().sum(-1, keepdim=True).sqrt()
    unit = rotate(x, spec.rotation, spec.seed) / (norm + 1e-8)
    lost = rotation_loss(spec.rotation, spec.head_dim) + (spec.head_dim / 2 + 6) * FLOAT32_UNIT * unit.abs()
    edges = torch.tensor([-torch.inf, *book.boundaries, torch.inf], dtype=torch.float64, device=x.device)
    codes = unpack_codes(found["codes"], spec.format.bits, spec.head_dim)
    wrong = (unit + lost < edges[codes]) | (unit - lost > edges[codes + 1])
    return int(wrong.sum()) + _wrong_float16(found["norm"], norm[..., 0], spec.head_dim * FLOAT32_UNIT)


def _wrong_float16(found: Tensor, wanted: Tensor, relative: float) -> int:
    low, high = ((wanted * (1 + sign * relative)).to(torch.float16).double() for sign in (-1, 1))
    value = unpack_float16(found, torch.float64)
    return int((~((value >= low) & (value <= high))).sum())


def _marked(scales: Tensor, lost: Tensor) -> int:
    """How many infinite or NaN vectors have no scale that marks them."""
    return int((~(scales[lost] == 255).any(-1)).sum())


def _wrong_e2m1(found: Fields, x: Tensor, spec: VectorSpec) -> int:
    """How many scales and codes of e2m1 are wrong.

    A scale is wrong that is no power of two near the group's largest element. Codes are wrong that do not fit the scale
    found.
    """
    y = grouped(rotate(x, spec.rotation, spec.seed), E2M1_GROUP)
    norm = x.square().sum(-1)[..., None, None].sqrt()
    slack = rotation_loss(spec.rotation, spec.head_dim) * norm + 4 * FLOAT32_UNIT * y.abs()
    largest, off = y.abs().amax(-1), slack.amax(-1)
    scales = found["scales"].double()
    low, high = (
        (
            torch.floor(torch.log2((largest + sign * off).clamp_min(0.0) * _E2M1_SHARE) + 0.5 + sign * _LOG_SLACK)
            + _UE8M0_BIAS
        ).clamp_min(0)
        for sign in (-1, 1)
    )
    wrong_scales = ((scales < low) | (scales > high)).sum()
    values = torch.tensor(E2M1.values, dtype=torch.float64, device=x.device)
    levels = torch.unique(values)
    edges = torch.cat((levels.new_tensor([-torch.inf]), (levels[:-1] + levels[1:]) / 2, levels.new_tensor([torch.inf])))
    codes = grouped(unpack_codes(found["codes"], 4, spec.head_dim), E2M1_GROUP)
    rank = torch.bucketize(values[codes], levels)
    step = torch.exp2(scales - _UE8M0_BIAS)[..., None]
    is_coded = (scales > 0)[..., None]
    wrong = is_coded & ((y + slack < edges[rank] * step) | (y - slack > edges[rank + 1] * step))
    return int(wrong_scales) + int(wrong.sum())


def unpack_limit(fields: Fields, spec: VectorSpec, dtype: torch.dtype) -> Tensor:
    """How far each element of a kernel's vectors [..., head_dim] may be from the reference's of the same fields,
    float64."""
    parts = decode(fields, spec)
    exact = assemble(parts, spec).abs()
    lost = 8 * FLOAT32_UNIT * exact
    if spec.rotation is not RotationKind.NONE or spec.format.method is Method.UNIFORM:
        size = parts.rotated.square().sum(-1, keepdim=True).sqrt()
        lost = lost + (rotation_loss(spec.rotation, spec.head_dim) + (spec.head_dim / 2 + 8) * FLOAT32_UNIT) * size
    if parts.projected is not None:
        matrix = projection(spec.head_dim, spec.seed).abs().to(exact)
        lost = lost + (spec.head_dim + 8) * FLOAT32_UNIT * (parts.projected.abs() @ matrix)
    limit: Tensor = lost + half_unit_in_last_place(exact + lost, dtype)
    return limit


def scores_limit(q: Tensor, keys: Fields, spec: VectorSpec) -> Tensor:
    """How far each score [heads, rows, length] of q [rows, heads, head_dim] may be.

    Queries and keys round to f16, and sums lose.
    """
    query, key = joined(transformed_queries(q.double(), spec)), joined(decode(keys, spec))
    sizes = key.square().sum(-1).sqrt().repeat_interleave(q.shape[1] // key.shape[1], dim=1)  # [length, heads]
    loss = 2.2 * F16.operand_unit + score_loss(spec) + sum_loss(spec.head_dim)
    smallest = 2.0**-25 * key.shape[-1] ** 0.5
    return torch.einsum("rh,nh->hrn", query.square().sum(-1).sqrt() * loss + smallest, sizes)


def packed_output_limit(wanted: Tensor, bound: Tensor, values: Fields, spec: VectorSpec, dtype: torch.dtype) -> Tensor:
    """How far an output in `dtype` may be: `bounds.stored_attention_bound`, plus the error of the smallest numbers of
    f16.

    Weights times factors are f16, in a unit that keeps the largest factor below 2^15. Each of the values is off by half
    of the smallest step, times elements below 8. Elements are f16 relative to their vector's factor, and their smallest
    step is 2^-24 of it.
    """
    decoded = joined(decode(values, spec)).nan_to_num(posinf=0.0, neginf=0.0).abs()
    largest = float(decoded.max()) if decoded.numel() else 0.0
    root = wanted.shape[-1] ** 0.5 * (wanted.shape[-1] ** 0.5 if has_signs(spec) else 1.0)
    smallest = (decoded.shape[0] * 2.0**-22 / WEIGHT_SHARE * max(1.0, largest * 2.0**-14) + 2.0**-23 * largest) * root
    limit: Tensor = bound + smallest + half_unit_in_last_place(wanted.abs() + bound, dtype)
    return limit


def _where(fields: Fields, mask: Tensor) -> Fields:
    return {name: field[mask] for name, field in fields.items()}
