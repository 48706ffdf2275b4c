"""Where each field of each token lies in a page: three layouts, one affine rule.

A cache is u8 pages, each of `page_bytes` bytes. Field f of token t and head h of a page begins at byte

    offset + t * token_stride + h * head_stride

of it. The layouts differ in these three numbers alone:

| layout | shape of a page | used by |
| --- | --- | --- |
| heads | [heads][fields][tokens] | our formats: one head's page is one piece of memory, for a bulk copy |
| slots | [tokens][heads][slot], a slot being key fields, then value fields, padded to even | vLLM 0.33.0 |
| split | [tokens][heads][codes], then float16 [heads][scalars][tokens] | vLLM 0.33.0 with FlyDSL on AMD |

vLLM's sources: `v1/attention/backends/turboquant_attn.py`, `v1/attention/ops/triton_turboquant_store.py`,
`v1/attention/ops/turboquant_soa/triton_turboquant_store.py`, `v1/attention/ops/ultraquant/format.py`.
"""

import functools
from dataclasses import dataclass

from gemmill.families.kv_cache.formats import CacheSpec, Field, Layout

KEYS, VALUES = "keys", "values"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a field lies in a page, in bytes."""

    side: str
    """keys or values."""
    field: Field
    """What lies there."""
    offset: int
    """Of token 0 and head 0."""
    token_stride: int
    """From a token to the next."""
    head_stride: int
    """From a head to the next."""


@dataclass(frozen=True, kw_only=True)
class PagePlan:
    """All of a page."""

    page_bytes: int
    """Bytes of a page, padding included."""
    placements: tuple[Placement, ...]
    """Key fields, then value fields."""


@functools.cache
def page_plan(spec: CacheSpec) -> PagePlan:
    """Where everything of a page of `spec` lies."""
    sides = [
        (side, field)
        for side, vectors in ((KEYS, spec.keys), (VALUES, spec.values))
        for field in vectors.format.fields(spec.head_dim)
    ]
    plan = {Layout.HEADS: _heads, Layout.SLOTS: _slots, Layout.SPLIT: _split}[spec.format.layout]
    return plan(spec, sides)


def bytes_of_token_and_head(spec: CacheSpec) -> float:
    """Bytes that the allocated pages spend on keys and values of one token and head, padding included."""
    return page_plan(spec).page_bytes / (spec.page_size * spec.kv_heads)


def _heads(spec: CacheSpec, sides: list[tuple[str, Field]]) -> PagePlan:
    """A multiple of 16 bytes for each field of a head, since a page has at least 16 tokens."""
    head_bytes = spec.page_size * sum(field.size for _, field in sides)
    placements, offset = [], 0
    for side, field in sides:
        placements.append(
            Placement(side=side, field=field, offset=offset, token_stride=field.size, head_stride=head_bytes)
        )
        offset += field.size * spec.page_size
    return PagePlan(page_bytes=head_bytes * spec.kv_heads, placements=tuple(placements))


def _slots(spec: CacheSpec, sides: list[tuple[str, Field]]) -> PagePlan:
    used = sum(field.size for _, field in sides)
    slot = used + used % 2
    placements, offset = [], 0
    for side, field in sides:
        placements.append(
            Placement(side=side, field=field, offset=offset, token_stride=slot * spec.kv_heads, head_stride=slot)
        )
        offset += field.size
    return PagePlan(page_bytes=slot * spec.kv_heads * spec.page_size, placements=tuple(placements))


def _split(spec: CacheSpec, sides: list[tuple[str, Field]]) -> PagePlan:
    codes = [pair for pair in sides if not pair[1].is_metadata]
    scalars = [pair for pair in sides if pair[1].is_metadata]
    code_bytes = sum(field.size for _, field in codes)
    code_region = code_bytes * spec.kv_heads * spec.page_size
    strip = sum(field.size for _, field in scalars) * spec.page_size
    placed, offset = {}, 0
    for side, field in codes:
        placed[side, field] = Placement(
            side=side, field=field, offset=offset, token_stride=code_bytes * spec.kv_heads, head_stride=code_bytes
        )
        offset += field.size
    offset = code_region
    for side, field in scalars:
        placed[side, field] = Placement(
            side=side, field=field, offset=offset, token_stride=field.size, head_stride=strip
        )
        offset += field.size * spec.page_size
    return PagePlan(page_bytes=code_region + strip * spec.kv_heads, placements=tuple(placed[pair] for pair in sides))
