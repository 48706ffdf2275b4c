"""Where each field of each token lies in a page: three layouts, one affine rule.

A cache is u8 pages, each of `page_bytes` bytes. Field f of token t and head h begins at this byte of its page:

    offset + t * token_stride + h * head_stride

The layouts differ in these three numbers alone:

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

from gemmill.families.kv_cache.formats import CacheSpec, PageLayout, VectorPart

KEYS, VALUES = "keys", "values"
Sides = list[tuple[str, VectorPart]]
"""Fields, each after the side whose field it is: "keys" or "values"."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a field lies in a page, in bytes."""

    side: str
    """Whose field it is: "keys" or "values"."""
    field: VectorPart
    offset: int
    """The byte of a page at which the field of token 0 and head 0 begins."""
    token_stride: int
    """Bytes from a token's field to the next token's."""
    head_stride: int
    """Bytes from a head's field to the next head's."""


@dataclass(frozen=True, kw_only=True)
class PagePlan:
    """The size of a page, and where its fields lie."""

    page_bytes: int
    """Bytes of a page, padding included."""
    placements: tuple[Placement, ...]
    """Key fields, then value fields."""


@functools.cache
def page_plan(spec: CacheSpec) -> PagePlan:
    """The size of a page of `spec`, and where each of its fields lies."""
    sides = [
        (side, field)
        for side, vectors in ((KEYS, spec.keys), (VALUES, spec.values))
        for field in vectors.format.fields(vectors.head_dim)
    ]
    size = _size(sides)
    match spec.format.layout:
        case PageLayout.HEADS:
            placements = _strips(spec, sides)
        case PageLayout.SLOTS:
            size += size % 2
            placements = _slots(spec, sides, size)
        case PageLayout.SPLIT:
            codes, scalars = ([pair for pair in sides if pair[1].is_metadata is metadata] for metadata in (False, True))
            behind = _size(codes) * spec.kv_heads * spec.page_size
            placements = [*_slots(spec, codes, _size(codes)), *_strips(spec, scalars, behind)]
            placements.sort(key=lambda placement: sides.index((placement.side, placement.field)))
    return PagePlan(page_bytes=size * spec.kv_heads * spec.page_size, placements=tuple(placements))


def bytes_of_token_and_head(spec: CacheSpec) -> float:
    """Bytes that the allocated pages spend on keys and values of one token and head, padding included."""
    return page_plan(spec).page_bytes / (spec.page_size * spec.kv_heads)


def _size(sides: Sides) -> int:
    """Bytes of the fields of one token and head."""
    return sum(field.size for _, field in sides)


def _strips(spec: CacheSpec, sides: Sides, offset: int = 0) -> list[Placement]:
    """Placements in which each head has its fields one after the other, and each field all its tokens.

    A field begins at a multiple of 16 bytes, since a page has at least 16 tokens.
    """
    placements = []
    for side, field in sides:
        strides = {"token_stride": field.size, "head_stride": spec.page_size * _size(sides)}
        placements.append(Placement(side=side, field=field, offset=offset, **strides))
        offset += field.size * spec.page_size
    return placements


def _slots(spec: CacheSpec, sides: Sides, slot: int) -> list[Placement]:
    """Placements in which each token and head has its fields in `slot` bytes."""
    placements, offset = [], 0
    for side, field in sides:
        strides = {"token_stride": slot * spec.kv_heads, "head_stride": slot}
        placements.append(Placement(side=side, field=field, offset=offset, **strides))
        offset += field.size
    return placements
