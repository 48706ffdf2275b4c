"""How far a right kernel's bytes and outputs may be from the reference's, from the arithmetic that it does.

Codes. A kernel rotates in float32, so a coordinate y is off by a little. A code may be another where y lies that near
to a boundary. With u = 2^-24, for a vector of norm 1:

- a butterfly stage rounds every sum once: at most u of the stage's 2-norm, log2 stages of them;
- a base matrix of 12, 20 or 28 adds that many terms in some order: (base - 1) sqrt(base) u of the 2-norm;
- a dense rotation adds d products: d u of the sum of their magnitudes, which is at most the norm;
- the scale d^-1/2, the norm and the division lose (d / 2 + 4) u of y itself, the norm being the root of d squares;
- sums of 16 on the tensor core lose 19 x 2^-23 of their magnitudes. Before the scale these add up to at most sqrt(d)
  of the norm.

A 2-norm bounds every coordinate. Scalars follow from the codes found, whose values decide the limit: half a unit of
float16, plus a float32 sum of d terms. A norm may be that of the rotated vector. The tensor core's losses move such a
vector by at most 4 times 19 x 2^-23 of its norm. The reason is that 16 magnitudes add up to at most 4 times their
2-norm. eden's scale has these losses three times.

Attention. Given the bytes, a kernel may round rotated queries, decoded keys and decoded values to its tensor core's
type (`operand_unit`) and softmax weights to `weight_unit`. The bound assumes that those roundings are independent and
of either sign. Hoeffding's inequality bounds a sum of them by `DEVIATIONS` times the root of the sum of its squared
bounds. One element in 10^7 may lie beyond. Source: Higham and Mary, "A new approach to probabilistic rounding error
analysis", 2019. Assuming that all add up would allow errors as large as the output. A codebook has few values, whose
roundings repeat: their common part scales a score or an output by 1 +- operand_unit. It counts in full. Through the
softmax, an error e_j of score j moves the output o = sum of w_j v_j by w_j e_j (v_j - o). Sums in float32 on the tensor
core lose 19 x 2^-23 of the magnitudes each 16 products, as in the bounds of GEMMs. These losses count in full.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.arithmetic import FLOAT32_UNIT, OF_16_BITS, half_unit_in_last_place
from gemmill.families.kv_cache import hadamard
from gemmill.families.kv_cache.codebooks import codebook
from gemmill.families.kv_cache.formats import OWN_METHODS, CacheSpec, Method, RotationKind, VectorSpec
from gemmill.families.kv_cache.pages import KEYS, VALUES
from gemmill.families.kv_cache.reference.attention import AttentionOptions, Stored, for_query_heads, softmax, visible
from gemmill.families.kv_cache.reference.bits import unpack_codes, unpack_float16
from gemmill.families.kv_cache.reference.cache import read
from gemmill.families.kv_cache.reference.rotations import hadamard_transform, projection, rotate, rotate_back
from gemmill.families.kv_cache.reference.vectors import Fields, decode, has_signs, joined, transformed_queries

DEVIATIONS = 6.0
_SECOND_ORDER = 1.1
"""The factor by which bounds grow for products of two errors, where a score's error is a tenth at most."""
WEIGHT_SHARE = 2.0**-3
"""The share of a row's largest weight that kernels give it at least: running maxima have headroom (decode_tiles.cuh)."""
_EXP_STEPS = 8
"""Units (2^-24) that exp2 on the device and the scaling of its argument lose."""


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """The roundings of a kernel's operands."""

    operand_unit: float
    """The rounding unit of rotated queries, decoded keys and decoded values: 2^-8 for bf16, 2^-11 for f16, 2^-24 for
    float32."""
    weight_unit: float
    """The rounding unit of softmax weights."""


BF16 = Arithmetic(operand_unit=2.0**-8, weight_unit=2.0**-8)
F16 = Arithmetic(operand_unit=2.0**-11, weight_unit=2.0**-11)
F32 = Arithmetic(operand_unit=FLOAT32_UNIT, weight_unit=FLOAT32_UNIT)


def rotation_loss(kind: RotationKind, head_dim: int) -> float:
    """The share of a vector's norm that a float32 rotation may lose in each coordinate."""
    if kind is RotationKind.NONE:
        return 0.0
    if kind is RotationKind.DENSE:
        return head_dim * FLOAT32_UNIT
    base, stages = hadamard.split(head_dim)
    return (stages + (base - 1) * math.sqrt(base) + 1) * FLOAT32_UNIT


def hadamard_limit(x: Tensor, scale: float) -> Tensor:
    """How far each element of a kernel's transform of x [..., columns] may be from the exact one, float64.

    Sums of 16 on the tensor core, then butterflies in float32, lose parts of the sum of all magnitudes; the result is
    rounded.
    """
    exact = hadamard_transform(x.double(), scale).abs()
    stages = math.log2(x.shape[-1])
    loss = sum_loss(16) + (stages + 2) * FLOAT32_UNIT
    lost = abs(scale) * loss * x.double().abs().sum(-1, keepdim=True)
    return lost + half_unit_in_last_place(exact + lost, x.dtype)


def decompress_limit(fields: Fields, spec: VectorSpec, dtype: torch.dtype) -> Tensor:
    """How far each element of a kernel's vectors [..., head_dim] may be from the reference's of the same fields,
    float64.

    Centroids round to f16. The rotation's sums lose as those of `hadamard_limit` do. The result rounds. The limit is
    NaN where a norm is not finite.
    """
    parts = decode(fields, spec).rotated
    loss = F16.operand_unit + sum_loss(16) + (rotation_loss(spec.rotation, spec.head_dim) + 4 * FLOAT32_UNIT)
    lost = loss * spec.head_dim**-0.5 * parts.abs().sum(-1, keepdim=True)
    exact = rotate_back(parts, spec.rotation, spec.seed).abs()
    limit: Tensor = lost + half_unit_in_last_place(exact + lost, dtype)
    return limit


def outside(found: Fields, x: Tensor, spec: VectorSpec) -> tuple[int, int]:
    """How many codes and signs, and how many scalars, of a kernel's `found` fields no float32 arithmetic explains.

    x [..., head_dim] are the kernel's input vectors, finite; our own methods' definitions decide on `found`. Raises
    ValueError for another method: comparisons with vLLM's are bit for bit.
    """
    if spec.format.method not in OWN_METHODS:
        raise ValueError(
            f"Bounds of {spec.format.method.value} were asked for; {', '.join(m.value for m in OWN_METHODS)} have them: "
            "compare vLLM's formats with reference.vectors.compress byte by byte."
        )
    x = x.double()
    rotated, low, high = _allowed_codes(x, spec)
    codes = unpack_codes(found["codes"], spec.format.code_bits, spec.head_dim)
    wrong_codes = int(((codes < low) | (codes > high)).sum())
    decoded = _centroids(spec, x)[codes]
    wanted = x.square().sum(-1).sqrt()
    if spec.format.method is Method.EDEN:
        wanted = torch.where(wanted > 0, wanted.square() / (decoded * rotated).sum(-1), 0.0)
    wrong_scalars = _wrong_scalars(found["norm"], wanted, _norm_loss(spec))
    if spec.format.method is Method.TURBOQUANT_PROD:
        wrong_signs, wrong_residuals = _outside_of_residual(found, x, decoded, spec)
        return wrong_codes + wrong_signs, wrong_scalars + wrong_residuals
    return wrong_codes, wrong_scalars


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """Codes and norms that float32 arithmetic may give for vectors: from the lowest to the highest."""

    codes: tuple[Tensor, Tensor]
    """int64 [..., head_dim]."""
    norms: tuple[Tensor, Tensor]
    """float16 [...]."""


def allowed(x: Tensor, spec: VectorSpec) -> Allowed:
    """The codes and norms allowed of vectors x [..., head_dim] by eden or turboquant_mse.

    Norms are those of any of the codes. Where a norm is infinite, NaN, or rounds to 0 in float16, codes mean nothing
    and all are allowed.
    """
    x = x.double()
    rotated, low, high = _allowed_codes(x, spec)
    norm = x.square().sum(-1).sqrt()
    smallest = largest = norm
    if spec.format.method is Method.EDEN:
        ends = torch.stack([_centroids(spec, x)[codes] * rotated for codes in (low, high)])
        dots = (ends.amax(0).sum(-1), ends.amin(0).sum(-1))  # a centroid grows with its code
        smallest, largest = (torch.where(norm == 0, 0.0, norm.square() / dot) for dot in dots)
    loss = _norm_loss(spec)
    norms = (smallest * (1 - loss)).to(torch.float16), (largest * (1 + loss)).to(torch.float16)
    means = (norms[0] > 0) & norms[1].isfinite()
    last = (1 << spec.format.code_bits) - 1
    codes = torch.where(means[..., None], low, 0), torch.where(means[..., None], high, last)
    return Allowed(codes=codes, norms=norms)


def _allowed_codes(x: Tensor, spec: VectorSpec) -> tuple[Tensor, Tensor, Tensor]:
    """The rotated x in float64, and the lowest and the highest code of each coordinate."""
    norm = x.square().sum(-1)[..., None].sqrt()
    rotated = rotate(x, spec.rotation, spec.seed)
    unit = torch.where(norm > 0, rotated / norm, 0.0)
    lost = rotation_loss(spec.rotation, spec.head_dim) + sum_loss(16)
    slack = lost + (spec.head_dim / 2 + 4) * FLOAT32_UNIT * unit.abs()
    boundaries = torch.tensor(codebook(spec.head_dim, spec.format.code_bits).boundaries, dtype=x.dtype, device=x.device)
    low, high = (
        torch.bucketize(at.contiguous(), boundaries, right=right)
        for at, right in ((unit - slack, False), (unit + slack, True))
    )
    return rotated, low, high


def _centroids(spec: VectorSpec, like: Tensor) -> Tensor:
    return torch.tensor(
        codebook(spec.head_dim, spec.format.code_bits).centroids, dtype=torch.float64, device=like.device
    )


def _norm_loss(spec: VectorSpec) -> float:
    """The share of a norm that float32 sums may lose before its rounding to float16."""
    return 2 * spec.head_dim * FLOAT32_UNIT + 12 * sum_loss(16)


def _outside_of_residual(found: Fields, x: Tensor, decoded: Tensor, spec: VectorSpec) -> tuple[int, int]:
    """How many signs and norms of the residual are wrong. The residual is the rest after the codes and norms found."""
    stored = decoded * _scalar(found["norm"])[..., None]
    residual = x - rotate_back(stored, spec.rotation, spec.seed)
    size = residual.square().sum(-1).sqrt()
    lost = (rotation_loss(spec.rotation, spec.head_dim) + 3 * FLOAT32_UNIT) * spec.head_dim**0.5
    lost = lost * (x.square().sum(-1).sqrt() + stored.square().sum(-1).sqrt())
    matrix = projection(spec.head_dim, spec.seed).to(x.device)
    slack = matrix.square().sum(-1).sqrt() * (lost + spec.head_dim * FLOAT32_UNIT * size)[..., None]
    projected = residual @ matrix.T
    signs = unpack_codes(found["signs"], 1, spec.head_dim) == 1
    wrong_signs = torch.where(signs, projected < -slack, projected > slack)
    relative = 2 * spec.head_dim * FLOAT32_UNIT + torch.where(size > 0, lost / size, 0.0)
    return int(wrong_signs.sum()), _wrong_scalars(found["residual_norm"], size, relative)


def _wrong_scalars(found: Tensor, wanted: Tensor, relative: float | Tensor) -> int:
    """How many float16 scalars lie beyond the rounded ends of an interval of float32 values."""
    low, high = ((wanted * (1 + sign * relative)).to(torch.float16).double() for sign in (-1, 1))
    value = _scalar(found)
    return int((~((value >= low) & (value <= high))).sum())


def _scalar(field: Tensor) -> Tensor:
    return unpack_float16(field, torch.float64)


def attention_bound(
    q: Tensor,
    cache: Tensor,
    spec: CacheSpec,
    pages: Tensor,
    length: int,
    options: AttentionOptions,
    how: Arithmetic,
    sinks: Tensor | None = None,
    *,
    rotated_out: bool = False,
) -> Tensor:
    """How far each element of a kernel's output may be from the reference's, float64 [rows, heads, head_dim].

    q is [rows, heads, head_dim]. `pages` is the sequence's row of the page table, `length` its tokens. With
    `rotated_out` the output stays in the basis of stored values, whose elements have limits of their own.
    """
    keys, values = (read(cache, spec, side, pages, length) for side in (KEYS, VALUES))
    stored = Stored(keys=keys, values=values, key_spec=spec.keys, value_spec=spec.values)
    return stored_attention_bound(q, stored, length, options, how, sinks, rotated_out=rotated_out)


def stored_attention_bound(
    q: Tensor,
    stored: Stored,
    length: int,
    options: AttentionOptions,
    how: Arithmetic,
    sinks: Tensor | None = None,
    *,
    rotated_out: bool = False,
    beyond: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """`attention_bound` of stored keys and values. A soft cap only lessens errors of scores.

    `beyond` adds to the inner products: sums of exact products, and of their magnitudes, each [heads, rows, length].
    """
    q, heads = q.double(), q.shape[1]
    key_spec, value_spec = stored.key_spec, stored.value_spec
    query, key = joined(transformed_queries(q, key_spec)), for_query_heads(joined(decode(stored.keys, key_spec)), heads)
    seen = visible(q.shape[0], length, options).to(q.device)
    raw = torch.einsum("rhd,nhd->hrn", query, key)
    weights, _ = softmax(raw if beyond is None else raw + beyond[0], seen, options, sinks)
    part = for_query_heads(joined(decode(stored.values, value_spec)), heads)
    back = _back(value_spec, rotated_out=rotated_out).to(q.device)
    value = part @ back
    out = torch.einsum("hrn,nhd->rhd", weights, value)
    off = value - out[:, None]  # [rows, n, heads, d]
    by_row = weights.permute(1, 2, 0)[..., None]  # [rows, n, heads, 1]
    moved = by_row * off

    products = query[:, None] * key  # [rows, n, heads, D]
    from_queries = (query[..., None] * torch.einsum("rnhd,nhe->rhed", moved, key)).square().sum(-2)
    from_keys = (products.square().sum(-1, keepdim=True) * moved.square()).sum(1)
    common_to_keys = (products.sum(-1, keepdim=True) * moved).sum(1).abs()
    from_weights = (by_row * value).square().sum(1)
    from_values = torch.einsum("hrn,nhd->rhd", weights.square(), part.square()) @ back.square()

    scores = how.operand_unit * options.scale
    random = scores**2 * (from_queries + from_keys) + how.weight_unit**2 * from_weights
    random = random + how.operand_unit**2 * from_values
    full = scores * common_to_keys + (how.operand_unit + how.weight_unit) * out.abs()
    magnitude = torch.einsum("hrn,nhd->rhd", weights, part.abs()) @ back.abs()
    float32 = magnitude * (
        sum_loss(length) + 4 * FLOAT32_UNIT + rotation_loss(value_spec.rotation, value_spec.head_dim)
    )
    magnitudes = products.abs().sum(-1, keepdim=True)
    if beyond is not None:
        magnitudes = magnitudes + torch.where(seen, beyond[1], 0.0).permute(1, 2, 0)[..., None]
    score_errors = options.scale * magnitudes * score_loss(key_spec) + _EXP_STEPS * FLOAT32_UNIT
    full = full + float32 + (score_errors * moved.abs()).sum(1)
    return (DEVIATIONS * random.sqrt() + full) * _SECOND_ORDER


def output_limit(wanted: Tensor, bound: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """How far an output in `dtype` of f16 operands may be: `attention_bound`, plus the error of rounding.

    Weights may be f16's smallest numbers. Then each of `length` values is off by half of such a step, times a centroid
    below 1, through the rotation back.
    """
    smallest = length * 2.0**-25 / WEIGHT_SHARE * wanted.shape[-1] ** 0.5
    limit: Tensor = bound + smallest + half_unit_in_last_place(wanted.abs() + bound, dtype)
    return limit


def lse_limit(q: Tensor, norms: Tensor, wanted: Tensor, options: AttentionOptions, how: Arithmetic) -> Tensor:
    """How far each lse [heads, rows] may be: as far as the score of the longest visible key.

    q is [rows, heads, head_dim], and `norms` [heads] are the keys' largest. Roundings of a query's elements, and of a
    key's, move a score by a unit of |q| |k| at most.
    """
    largest = options.scale * q.double().square().sum(-1).sqrt().T * norms[:, None]
    return 2 * _SECOND_ORDER * how.operand_unit * largest + 64 * FLOAT32_UNIT * (1 + wanted.abs() + largest)


def _back(spec: VectorSpec, *, rotated_out: bool) -> Tensor:
    """The matrix [D, head_dim] that takes both parts of stored vectors to the vectors, or to the rotated ones."""
    eye = torch.eye(spec.head_dim, dtype=torch.float64, device="cpu")
    back = eye if rotated_out else rotate_back(eye, spec.rotation, spec.seed)
    if not has_signs(spec):
        return back
    signs = projection(spec.head_dim, spec.seed)
    return torch.cat((back, rotate(signs, spec.rotation, spec.seed) if rotated_out else signs))


def score_loss(spec: VectorSpec) -> float:
    """The share of the magnitudes of a score's products that float32 loses.

    The rotation of the query, the sum and the softmax's argument lose it.
    """
    rotated = max(rotation_loss(spec.rotation, spec.head_dim), spec.head_dim * FLOAT32_UNIT if has_signs(spec) else 0.0)
    return rotated * math.sqrt(spec.head_dim) + sum_loss(spec.head_dim) + _EXP_STEPS * FLOAT32_UNIT


def sum_loss(terms: int) -> float:
    """The share that a tensor core loses of a sum of so many products of 16 bits. It is relative to the largest partial
    sum."""
    return OF_16_BITS.losses * OF_16_BITS.unit * -(-terms // OF_16_BITS.instruction_k)
