"""Vectors to fields and back, by every method of `formats.py`.

A stored vector is a sum of two parts: one in the rotated basis, one (turboquant_prod's signs) in the projection's,

    x~ = R^T rotated + S^T projected,    <q, x~> = <R q, rotated> + <S q, projected>,

so queries need one transform and stored vectors none.

NaN stays visible. A vector with a NaN or infinite element has a norm, scale or zero that is not finite, and decodes to
nothing finite. Its codes are 0 in our own formats. A vector of zeros decodes to zeros.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.families.kv_cache.codebooks import Codebook, codebook
from gemmill.families.kv_cache.formats import OWN_METHODS, Method, VectorSpec
from gemmill.families.kv_cache.reference import vllm
from gemmill.families.kv_cache.reference.bits import pack_codes, pack_float16, unpack_codes, unpack_float16
from gemmill.families.kv_cache.reference.rotations import projection, rotate, rotate_back

Fields = dict[str, Tensor]
"""Field name to u8 [..., bytes of the field]."""


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """A stored vector in the rotated basis."""

    rotated: Tensor
    """The part in the rotated basis, [..., d]."""
    projected: Tensor | None
    """The part in the projection's basis, [..., d]; None where the method has no signs."""


def compress(x: Tensor, spec: VectorSpec, dtype: torch.dtype = torch.float64) -> Fields:
    """Fields of the vectors x [..., head_dim] of a float type; the arithmetic of our own methods is in `dtype`.

    vLLM's methods compute in float32 as vLLM does. Raises ValueError if x's last size is not spec.head_dim, or its
    dtype no float.
    """
    if not x.is_floating_point() or x.shape[-1:] != (spec.head_dim,):
        raise ValueError(
            f"Vectors {x.dtype} {list(x.shape)} were to be compressed; the cache holds vectors of {spec.head_dim} elements "
            "of a float type: pass [tokens, heads, head_dim]."
        )
    if spec.format.method in OWN_METHODS:
        return _compress_own(x.to(dtype), spec)
    return vllm.compress(x.to(torch.float32), spec)


def decode(fields: Fields, spec: VectorSpec, dtype: torch.dtype = torch.float64) -> Decoded:
    """Both parts of the stored vectors, in `dtype`."""
    if spec.format.method not in OWN_METHODS:
        return Decoded(rotated=vllm.decode(fields, spec, dtype), projected=None)
    codes = unpack_codes(fields["codes"], spec.format.code_bits, spec.head_dim)
    centroids = torch.tensor(_codebook(spec).centroids, dtype=dtype, device=codes.device)
    rotated = centroids[codes] * unpack_float16(fields["norm"], dtype)[..., None]
    if not has_signs(spec):
        return Decoded(rotated=rotated, projected=None)
    signs = 2 * unpack_codes(fields["signs"], 1, spec.head_dim).to(dtype) - 1
    factor = math.sqrt(math.pi / 2) / spec.head_dim
    return Decoded(
        rotated=rotated, projected=signs * (unpack_float16(fields["residual_norm"], dtype) * factor)[..., None]
    )


def decompress(fields: Fields, spec: VectorSpec, dtype: torch.dtype = torch.float64) -> Tensor:
    """The stored vectors [..., head_dim] in `dtype`, rotated back."""
    return assemble(decode(fields, spec, dtype), spec)


def assemble(parts: Decoded, spec: VectorSpec) -> Tensor:
    """Vectors R^T rotated + S^T projected, [..., head_dim]. It also assembles weighted sums of stored vectors."""
    x = rotate_back(parts.rotated, spec.rotation, spec.seed)
    if parts.projected is not None:
        x = x + parts.projected @ projection(spec.head_dim, spec.seed).to(x)
    return x


def transformed_queries(q: Tensor, spec: VectorSpec) -> Decoded:
    """Queries R q and S q of q [..., head_dim], in q's dtype, which multiply stored keys."""
    return Decoded(
        rotated=rotate(q, spec.rotation, spec.seed),
        projected=q @ projection(spec.head_dim, spec.seed).to(q).T if has_signs(spec) else None,
    )


def has_signs(spec: VectorSpec) -> bool:
    """Whether stored vectors have a part in the projection's basis."""
    return spec.format.method is Method.TURBOQUANT_PROD


def joined(parts: Decoded) -> Tensor:
    """Both parts side by side, [..., d] or [..., 2 d]: an inner product of two such is that of the vectors."""
    return parts.rotated if parts.projected is None else torch.cat((parts.rotated, parts.projected), dim=-1)


def to_bytes(fields: Fields, spec: VectorSpec) -> Tensor:
    """The plain packed tensor u8 [..., bytes]: the fields of each vector one after the other."""
    return torch.cat([fields[field.name] for field in spec.format.fields(spec.head_dim)], dim=-1)


def from_bytes(packed: Tensor, spec: VectorSpec) -> Fields:
    """The fields of a plain packed tensor u8 [..., bytes]. Raises ValueError for another dtype or size."""
    size = spec.format.size(spec.head_dim)
    if packed.dtype is not torch.uint8 or packed.shape[-1] != size:
        raise ValueError(
            f"Packed vectors {packed.dtype} of {packed.shape[-1]} bytes were given; {spec.format.method.value} in "
            f"{spec.format.bits} bits of {spec.head_dim} elements is torch.uint8 of {size}: pass what compress wrote."
        )
    fields = spec.format.fields(spec.head_dim)
    parts = torch.split(packed, [field.size for field in fields], dim=-1)
    return {field.name: part for field, part in zip(fields, parts, strict=True)}


def _compress_own(x: Tensor, spec: VectorSpec) -> Fields:
    book = _codebook(spec)
    norm = x.square().sum(-1).sqrt()
    rotated = rotate(x, spec.rotation, spec.seed)
    usable = torch.isfinite(norm) & (norm > 0)
    unit = torch.where(usable[..., None], rotated / norm[..., None], 0.0)
    codes = torch.bucketize(unit, torch.tensor(book.boundaries, dtype=x.dtype, device=x.device), right=True)
    codes = torch.where(torch.isfinite(norm)[..., None], codes, 0)
    decoded = torch.tensor(book.centroids, dtype=x.dtype, device=x.device)[codes]
    if spec.format.method is Method.EDEN:
        unbiased = norm.square() / (decoded * rotated).sum(-1)
        norm = torch.where(usable, unbiased, norm)
    fields = {"codes": pack_codes(codes, spec.format.code_bits), "norm": pack_float16(norm)}
    if has_signs(spec):
        stored = decoded * unpack_float16(fields["norm"], x.dtype)[..., None]
        residual = x - rotate_back(stored, spec.rotation, spec.seed)
        signs = residual @ projection(spec.head_dim, spec.seed).to(x).T >= 0
        fields |= {
            "signs": pack_codes(signs, 1),
            "residual_norm": pack_float16(residual.square().sum(-1).sqrt()),
        }
    return fields


def _codebook(spec: VectorSpec) -> Codebook:
    return codebook(spec.head_dim, spec.format.code_bits)
