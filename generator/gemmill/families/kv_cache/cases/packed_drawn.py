"""Random calls of the ops of packed vectors."""

import math

import torch

from gemmill.families.kv_cache.cases.laid import call, vectors
from gemmill.families.kv_cache.cases.packed_calls import key_formats, takes_rotated
from gemmill.families.kv_cache.config import DTYPES, MOST_OF_ANY
from gemmill.families.kv_cache.formats import HEAD_DIMS
from gemmill.families.kv_cache.packed import KEY_FORMATS, VALUE_FORMATS
from gemmill.families.kv_cache.packed_ops import (
    ATTENTION,
    COMPRESS_KEYS,
    COMPRESS_VALUES,
    DECOMPRESS_KEYS,
    DECOMPRESS_VALUES,
    SCORES,
)
from gemmill.numerics.call import LegalCall, Limits
from gemmill.numerics.draw import Draw
from gemmill.numerics.layouts import TIDY, matrix, torch_dtype, vector
from gemmill.numerics.memory import Slot

_OF_VECTORS = (COMPRESS_KEYS, COMPRESS_VALUES, DECOMPRESS_KEYS, DECOMPRESS_VALUES)
PACKED_NAMES = frozenset(schema.name for schema in (*_OF_VECTORS, SCORES, ATTENTION))
_MOST_TOKENS = 256
_ROWS = (0, 1, 1, 1, 3, 8, 40)
MOST_OF_GROUP = 17
"""The most query heads of a KV head: one more than a tile has rows."""


def drawn_packed(op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A random call of any op of packed vectors."""
    if op == SCORES.name:
        return _scores(draw)
    return _attention(draw) if op == ATTENTION.name else _of_vectors(op, draw, limits)


def _bytes(draw: Draw, shape: tuple[int, ...], format: str, head_dim: int, *, written: bool = False) -> Slot:
    """Packed vectors at one stride. Bytes 0 and 1 are finite as scales of any kind."""
    size = (KEY_FORMATS | VALUE_FORMATS)[format].size(head_dim)
    values = "bounds" if not written else "codes"
    return vectors(draw, torch.uint8, (*shape, size), draw.chance(TIDY), written=written, values=values)


def _scales(draw: Draw, heads: int) -> Slot:
    return vector(draw, torch.float32, heads, "scales", ((heads,),), reference_shape=(heads,))


def _of_vectors(op: str, draw: Draw, limits: Limits) -> LegalCall:
    of_values, stores = (
        op in (COMPRESS_VALUES.name, DECOMPRESS_VALUES.name),
        op in (COMPRESS_KEYS.name, COMPRESS_VALUES.name),
    )
    dtype, heads, head_dim = torch_dtype(draw.one_of(DTYPES)), 1 + draw.below(5), draw.one_of(HEAD_DIMS)
    format = draw.one_of(tuple(VALUE_FORMATS) if of_values else key_formats(head_dim))
    tokens = draw.size(max(1, min(_MOST_TOKENS, limits.elements // (heads * head_dim))))
    is_mapped = draw.chance(0.6)
    slots = {
        "packed": _bytes(draw, (draw.below(64) if is_mapped else tokens, heads), format, head_dim, written=stores),
        "values" if of_values else "keys": vectors(
            draw, dtype, (tokens, heads, head_dim), draw.chance(TIDY), written=not stores
        ),
    }
    if is_mapped:
        slots["slot_mapping"] = vector(draw, torch.int64, tokens, "places", ((tokens,),), reference_shape=(tokens,))
    plain = {"format": format, "seed": draw.below(1 << 40)}
    if stores:
        plain["rotated"] = takes_rotated(of_values, format) and draw.chance(0.3)
    if format == "e4m3" and draw.chance(0.5):
        slots["scales"] = _scales(draw, heads)
    return call(op, draw, slots, plain)


def _queries(draw: Draw) -> tuple[torch.dtype, int, int, int]:
    head_dims = tuple(d for d in HEAD_DIMS if d <= MOST_OF_ANY)
    return torch_dtype(draw.one_of(DTYPES)), 1 + draw.below(2), 1 + draw.below(MOST_OF_GROUP), draw.one_of(head_dims)


def _scores(draw: Draw) -> LegalCall:
    dtype, kv_heads, group, head_dim = _queries(draw)
    batch, rows, length, heads = draw.below(3), draw.one_of(_ROWS[:6]), draw.below(200), kv_heads * group
    format, shape = draw.one_of(key_formats(head_dim)), (batch, heads, rows, length)
    slots = {
        "scores": vector(draw, torch.float32, math.prod(shape), None, (shape,), written=True, reference_shape=shape),
        "q": vectors(draw, dtype, (batch, rows, heads, head_dim), draw.chance(TIDY)),
        "keys": _bytes(draw, (batch, length, kv_heads), format, head_dim),
    }
    if format == "e4m3" and draw.chance(0.5):
        slots["key_scales"] = _scales(draw, kv_heads)
    return call(SCORES.name, draw, slots, {"format": format, "seed": draw.below(1 << 40)})


def _attention(draw: Draw) -> LegalCall:
    dtype, kv_heads, group, head_dim = _queries(draw)
    batch, rows, heads = draw.one_of((0, 1, 1, 2, 3)), draw.one_of(_ROWS), kv_heads * group
    key, value = draw.one_of(key_formats(head_dim)), draw.one_of(tuple(VALUE_FORMATS))
    is_paged, page = draw.chance(0.7), draw.one_of((1, 7, 16, 64, 100))
    pages, query = draw.below(4) if is_paged else batch, (batch, rows, heads, head_dim)
    slots = {
        "out": vectors(draw, dtype, query, draw.chance(TIDY), written=True),
        "q": vectors(draw, dtype, query, draw.chance(TIDY)),
        "keys": _bytes(draw, (pages, page, kv_heads), key, head_dim),
        "values": _bytes(draw, (pages, page, kv_heads), value, head_dim),
        "seq_lens": vector(draw, torch.int32, batch, "codes", ((batch,),), reference_shape=(batch,)),
    }
    if is_paged:
        slots["block_table"] = matrix(draw, torch.int32, batch, draw.below(4), "codes")
    if draw.chance(0.3):
        slots["sinks"] = vector(draw, torch.float32, heads, "normal", ((heads,),), reference_shape=(heads,))
    if draw.chance(0.7):
        lse = (batch, heads, rows)
        slots["lse"] = vector(draw, torch.float32, math.prod(lse), None, (lse,), written=True, reference_shape=lse)
    for side, own in (("key_scales", key), ("value_scales", value)):
        if own == "e4m3" and draw.chance(0.5):
            slots[side] = _scales(draw, kv_heads)
    has_signs = "prod" in key or "prod" in value
    plain = {
        "format": f"k_{key}_v_{value}",
        "scale": draw.one_of((head_dim**-0.5, 1.0)),
        "seed": -1 if not has_signs and draw.chance(0.2) else draw.below(1 << 40),
        "causal": draw.chance(0.7),
        "window": draw.one_of((0, 0, 1, 7, 100)),
        "softcap": draw.one_of((0.0, 0.0, 20.0)),
        "rotated_out": not has_signs and draw.chance(0.2),
    }
    return call(ATTENTION.name, draw, slots, plain)
