"""Attention over keys and values, plain or compressed: the exact result, and the definition of the fused op.

Query rows are the last tokens of their sequence: row i of R stands at position length - R + i. A key at position j is
visible to a row at p if

    j < length,   j <= p if causal,   p - j < window or j < sink_tokens if there is a window.

Scores are scale <q, k>, with a soft cap cap tanh(score / cap). Weights are their softmax. A sink is a logit for each
query head, as in gpt-oss: it adds to the denominator and no value. lse is log(sum of exp(score) + exp(sink)), a natural
logarithm. A row that sees no key gives zeros, and an lse of -inf or its sink. Rows do not read keys and values that
they may not see, so NaN in a page's padding or behind a mask never shows. NaN in a visible key makes the row NaN, and
so does one anywhere in a stored value.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.families.kv_cache.formats import CacheSpec, VectorSpec
from gemmill.families.kv_cache.pages import KEYS, VALUES
from gemmill.families.kv_cache.reference.cache import check_page_table, read
from gemmill.families.kv_cache.reference.vectors import (
    Decoded,
    Fields,
    assemble,
    decode,
    joined,
    transformed_queries,
)


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """The options of an attention: all arguments but its tensors."""

    scale: float
    """The factor of scores, most often head_dim^-1/2."""
    causal: bool = True
    """Whether a row sees no key after it."""
    window: int | None = None
    """How many keys up to itself a row sees; None for all."""
    sink_tokens: int = 0
    """First keys that stay visible in addition to a window (Xiao et al., StreamingLLM, 2023)."""
    soft_cap: float | None = None
    """Scores stay below it in magnitude; None for no cap."""

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(
                f"A window of {self.window} keys was asked for; it has at least one: give None for no window."
            )
        if self.sink_tokens and self.window is None:
            raise ValueError(
                f"{self.sink_tokens} sink tokens without a window were asked for; they stay visible in addition to one: "
                "give a window."
            )
        if self.soft_cap is not None and not self.soft_cap > 0:
            raise ValueError(f"A soft cap of {self.soft_cap} was asked for; it is positive: give None for no cap.")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Keys and values of one sequence as fields u8 [length, kv_heads, bytes], and the formats of their bytes."""

    keys: Fields
    values: Fields
    key_spec: VectorSpec
    value_spec: VectorSpec


def attention(
    q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions, sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Exact attention of one sequence: out [rows, heads, d] and lse [heads, rows], in the inputs' dtype.

    q is [rows, heads, d], k and v are [length, kv_heads, d], sinks [heads]. heads is a multiple of kv_heads. Query head
    h reads KV head h // (heads // kv_heads).
    """
    scores = torch.einsum("rhd,nhd->hrn", q, for_query_heads(k, q.shape[1]))
    seen = visible(q.shape[0], k.shape[0], options).to(q.device)
    weights, lse = softmax(scores, seen, options, sinks)
    return _weigh(weights, seen, for_query_heads(v, q.shape[1])), lse


def attention_scores(q: Tensor, keys: Fields, spec: VectorSpec) -> Tensor:
    """Inner products <q, k~> of queries and stored keys, [batch, heads, rows, length], in q's dtype; no scale, no mask.

    q is [batch, rows, heads, head_dim]. The fields of `keys` are u8 [batch, length, kv_heads, bytes].
    """
    return torch.stack([_scores(rows, _of_sequence(keys, b), spec) for b, rows in enumerate(q)])


def decode_attention(
    q: Tensor,
    cache: Tensor,
    spec: CacheSpec,
    block_table: Tensor,
    seq_lens: Tensor,
    options: AttentionOptions,
    sinks: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Attention over a compressed cache: out [batch, rows, heads, elements of a value] and lse [batch, heads, rows], in `dtype`.

    q is [batch, rows, heads, head_dim], and cache u8 [pages, ...]. sinks are [heads]. block_table is whole numbers
    [batch, pages of the longest]. seq_lens is whole numbers [batch], the query rows' own tokens included. It reads
    nothing beyond a length.

    Raises ValueError for a page table that does not fit, and where heads is no multiple of the KV heads.
    """
    check_page_table(spec, cache.shape[0], block_table, seq_lens)
    if q.dim() != 4 or q.shape[0] != seq_lens.shape[0] or q.shape[2] % spec.kv_heads or q.shape[3] != spec.head_dim:
        raise ValueError(
            f"Queries {list(q.shape)} were given for {seq_lens.shape[0]} sequences of {spec.kv_heads} KV heads of "
            f"{spec.head_dim}; they are [sequences, rows, heads, head dim] with a multiple of the KV heads: reshape them."
        )
    outs, lses = [], []
    for rows, pages, length in zip(q.to(dtype), block_table, seq_lens.tolist(), strict=True):
        stored = Stored(
            keys=read(cache, spec, KEYS, pages, length),
            values=read(cache, spec, VALUES, pages, length),
            key_spec=spec.keys,
            value_spec=spec.values,
        )
        out, lse = attend(rows, stored, options, sinks)
        outs.append(out)
        lses.append(lse)
    return torch.stack(outs), torch.stack(lses)


def attend(
    q: Tensor,
    stored: Stored,
    options: AttentionOptions,
    sinks: Tensor | None = None,
    *,
    beyond: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of one sequence over stored keys and values: out [rows, heads, d] and lse [heads, rows], in q's dtype.

    q [rows, heads, d]; sinks [heads]. `beyond` [heads, rows, length] adds to the inner products.
    """
    values = decode(stored.values, stored.value_spec, q.dtype)
    seen = visible(q.shape[0], values.rotated.shape[0], options).to(q.device)
    row_sinks = None if sinks is None else sinks.to(q.dtype)
    scores = _scores(q, stored.keys, stored.key_spec)
    weights, lse = softmax(scores if beyond is None else scores + beyond, seen, options, row_sinks)
    return assemble(_weigh_decoded(weights, seen, values, q.shape[1]), stored.value_spec), lse


def merge(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention over several sets of keys, from pairs of out [..., rows, heads, d] and lse [..., heads, rows] over
    each.

    The order of the list is the order of the sums. At most one part may have counted a sink.
    """
    lse = torch.logsumexp(torch.stack([part_lse for _, part_lse in parts]), dim=0)
    out = torch.zeros_like(parts[0][0])
    for part_out, part_lse in parts:
        share = torch.where(torch.isneginf(part_lse), 0.0, torch.exp(part_lse - lse))
        out = out + part_out * share.transpose(-1, -2)[..., None]
    return out, lse


def visible(rows: int, length: int, options: AttentionOptions) -> Tensor:
    """Which keys each row sees, bool [rows, length]."""
    position = torch.arange(length - rows, length, dtype=torch.int64, device="cpu")[:, None]
    key = torch.arange(length, dtype=torch.int64, device="cpu")
    seen = torch.ones(rows, length, dtype=torch.bool, device="cpu")
    if options.causal:
        seen &= key <= position
    if options.window is not None:
        seen &= (position - key < options.window) | (key < options.sink_tokens)
    return seen


def _scores(q: Tensor, keys: Fields, spec: VectorSpec) -> Tensor:
    """Scores [heads, rows, length] of one sequence: transforms q once, and never a key."""
    stored = for_query_heads(joined(decode(keys, spec, q.dtype)), q.shape[1])
    return torch.einsum("rhd,nhd->hrn", joined(transformed_queries(q, spec)), stored)


def softmax(scores: Tensor, seen: Tensor, options: AttentionOptions, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights [heads, rows, length], 0 where a key is not visible, and lse [heads, rows], of raw scores."""
    heads, rows, _ = scores.shape
    scores = scores * options.scale
    if options.soft_cap is not None:
        scores = options.soft_cap * torch.tanh(scores / options.soft_cap)
    scores = torch.where(seen, scores, -torch.inf)
    no_sink = scores.new_full((heads,), -torch.inf)
    sink = (no_sink if sinks is None else sinks)[:, None, None].expand(heads, rows, 1)
    lse = torch.logsumexp(torch.cat((scores, sink), dim=-1), dim=-1)
    weights = torch.where(torch.isneginf(scores), 0.0, torch.exp(scores - lse[..., None]))
    return weights, lse


def _weigh(weights: Tensor, seen: Tensor, values: Tensor) -> Tensor:
    """Sums [rows, heads, d] of values [length, heads, d] by weights [heads, rows, length].

    Infinity and NaN show in every row that sees their key, however small the weight, and in no other.
    """
    finite = torch.isfinite(values)
    out = torch.einsum("hrn,nhd->rhd", weights, torch.where(finite, values, 0.0))
    spoiled = torch.einsum("rn,nhd->rhd", seen.to(values.dtype), (~finite).to(values.dtype)) > 0
    return torch.where(spoiled, torch.nan, out)


def _weigh_decoded(weights: Tensor, seen: Tensor, values: Decoded, heads: int) -> Decoded:
    is_finite = torch.isfinite(joined(values)).all(-1, keepdim=True)

    def weigh(part: Tensor) -> Tensor:
        return _weigh(weights, seen, for_query_heads(torch.where(is_finite, part, torch.nan), heads))

    return Decoded(
        rotated=weigh(values.rotated), projected=None if values.projected is None else weigh(values.projected)
    )


def for_query_heads(x: Tensor, heads: int) -> Tensor:
    """The KV heads x [length, kv_heads, d] as [length, heads, d]: each KV head for its group of query heads."""
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def _of_sequence(fields: Fields, index: int) -> Fields:
    return {name: field[index] for name, field in fields.items()}
