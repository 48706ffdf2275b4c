"""Attention over a cache of latents: scores of the latent and of the rotary part, values of the latent."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.families.kv_cache.formats import VectorSpec
from gemmill.families.kv_cache.latent import (
    E4M3_TOKEN_BYTES,
    LATENT_BYTES,
    LATENT_DIM,
    LATENT_FORMATS,
    ROTARY_AT,
    latent_spec,
)
from gemmill.families.kv_cache.reference.asked import Given, Result
from gemmill.families.kv_cache.reference.attention import AttentionOptions, Stored, attend
from gemmill.families.kv_cache.reference.rotations import rotate, rotate_back
from gemmill.families.kv_cache.reference.vectors import from_bytes
from gemmill.family import Judged

_LEAST_QUERY = 2.0**-7
"""f16 is off by 2^-25 below 2^-14: 2^-18 of it, which is the least share of magnitudes that limits of scores allow."""


@dataclass(frozen=True, kw_only=True)
class LatentSequence:
    """One sequence of a call."""

    q: Tensor
    """Latent parts of its queries in their own basis, float64 [rows, heads, 512]."""
    stored: Stored
    """Latents as keys and as values, of one KV head."""
    rotary_scores: Tensor
    """Inner products of rotary parts, float64 [heads, rows, length]."""
    rotary_magnitudes: Tensor
    """Sums of the magnitudes of their products. Queries that meet e4m3 count as larger, since kernels round them to f16."""
    length: int


def parts_of(cache: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Packed latents u8 [..., 258] and rotary parts [..., 64] of a cache u8 [..., 400], in `dtype`, or u8 [..., 336], in e4m3.

    Both share its memory.
    """
    is_e4m3 = cache.shape[-1] == E4M3_TOKEN_BYTES
    return cache[..., :LATENT_BYTES], cache[..., ROTARY_AT:].view(torch.float8_e4m3fn if is_e4m3 else dtype)


def spec_of(call: Judged) -> VectorSpec:
    """The spec of a call's latents."""
    return latent_spec(tuple(LATENT_FORMATS)[call["format_index"]], call["seed"])


def options_of(call: Judged) -> AttentionOptions:
    """The options of a call."""
    return AttentionOptions(scale=call["scale"], causal=bool(call["causal"]))


def sequences(call: Judged, given: Given) -> Iterator[LatentSequence]:
    """The sequences of a call. The nearest page or length of the cache replaces one that it does not have."""
    spec, cache, queries, scales = spec_of(call), given["cache"], given["q"], given.get("key_scales")
    reach = call["table_pages"] * call["page"] if call["pages"] else 0
    lengths = given["seq_lens"].reshape(-1).long().clamp(0, reach).tolist()
    table = given["block_table"].long().clamp(0, max(call["pages"] - 1, 0))
    for q, pages, length in zip(queries, table, lengths, strict=True):
        tokens = torch.arange(length, device=cache.device, dtype=torch.int64)
        latents, rotary = parts_of(
            cache[pages[tokens // call["page"]], tokens % call["page"]].contiguous(), queries.dtype
        )
        latent_q, rotary_q = q[..., :LATENT_DIM].double(), q[..., LATENT_DIM:].double()
        if call["seed"] < 0:  # the reference rotates, by the transpose of the rotation that undoes it
            latent_q = rotate_back(latent_q, spec.rotation, spec.seed)
        fields = from_bytes(latents[:, None], spec)
        rotary = rotary.double() if scales is None else rotary.double() * scales.double()
        least = _LEAST_QUERY if call["rotary_is_e4m3"] else 0.0
        yield LatentSequence(
            q=latent_q,
            stored=Stored(keys=fields, values=fields, key_spec=spec, value_spec=spec),
            rotary_scores=torch.einsum("rhe,ne->hrn", rotary_q, rotary),
            rotary_magnitudes=torch.einsum("rhe,ne->hrn", rotary_q.abs() + least, rotary.abs()),
            length=length,
        )


def attended(call: Judged, given: Given) -> tuple[Tensor, Tensor]:
    """Output [batch, rows, heads, 512] and log-sum-exp [batch, heads, rows] of a call in float64."""
    found = [attend(x.q, x.stored, options_of(call), beyond=x.rotary_scores) for x in sequences(call, given)]
    out, spec = torch.stack([out for out, _ in found]), spec_of(call)
    stays = bool(call["rotated_out"]) or call["seed"] < 0
    return rotate(out, spec.rotation, spec.seed) if stays else out, torch.stack([lse for _, lse in found])


def latent_attention(call: Judged, given: Given) -> Iterator[Result]:
    """Output and log-sum-exp."""
    out, lse = attended(call, given)
    yield given["out"], out
    if given.get("lse") is not None:
        yield given["lse"], lse
