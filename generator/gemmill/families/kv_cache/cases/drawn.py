"""Random calls of the compressed cache's ops."""

import math

import torch

from gemmill.families.kv_cache.cases.laid import DATA, call, vectors
from gemmill.families.kv_cache.cases.latent import drawn_latent
from gemmill.families.kv_cache.cases.packed_drawn import MOST_OF_GROUP, PACKED_NAMES, drawn_packed
from gemmill.families.kv_cache.config import COMMON_HEAD_DIM, DTYPES, FORMATS
from gemmill.families.kv_cache.formats import HEAD_DIMS, PAGE_SIZES, VALUE_DIMS
from gemmill.families.kv_cache.latent_ops import LATENT
from gemmill.families.kv_cache.ops import COMPRESS, DECODE, DECODED, HADAMARD, STORED
from gemmill.numerics.call import LegalCall, Limits
from gemmill.numerics.draw import Draw
from gemmill.numerics.layouts import TIDY, free_stride, matrix, torch_dtype, vector
from gemmill.numerics.memory import Slot

_BYTES = ("bounds", "bounds", "bounds", "codes")
"""The data of a cache that attention reads: bytes 0 and 1, whose scales are finite, three times in four; else all
bytes."""
_MOST_SLOTS = 512


def drawn(op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A random call of any op of the family."""
    if op in PACKED_NAMES:
        return drawn_packed(op, draw, limits)
    if op == HADAMARD.name:
        return _hadamard(draw, limits)
    if op == LATENT.name:
        return drawn_latent(draw)
    return _decode(draw) if op == DECODE.name else _of_tokens(op, draw, limits)


def _hadamard(draw: Draw, limits: Limits) -> LegalCall:
    columns, dtype = draw.one_of(HEAD_DIMS), torch_dtype(draw.one_of(DTYPES))
    rows, tidy = draw.size(max(1, limits.elements // columns)), draw.chance(TIDY)
    slots = {
        "out": matrix(draw, dtype, rows, columns, None, written=True, tidy=tidy),
        "x": matrix(draw, dtype, rows, columns, draw.one_of(DATA), tidy=tidy),
    }
    return call(HADAMARD.name, draw, slots, {"scale": draw.one_of((1.0, columns**-0.5, -0.25))})


def _cache(draw: Draw, shape: tuple[int, ...], values: str, *, written: bool = False) -> Slot:
    """A cache whose pages have no gaps within, but may be apart. It begins at an aligned address."""
    pages, heads, page, size = shape
    columns = heads * page * size
    step = columns + draw.one_of((0, 0, 16, 256))
    return Slot(
        dtype=torch.uint8,
        shape=shape,
        strides=(free_stride(draw, pages, step), free_stride(draw, heads, page * size), size, 1),
        rows=pages,
        columns=columns,
        row_stride=step,
        column_stride=1,
        values=values,
        written=written,
        shift=draw.one_of((0, 0, 16, 48)),
        reference_shape=shape,
    )


def _of_tokens(op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A random call that stores or restores vectors."""
    stores = op == COMPRESS.name
    dtype, heads, (format, head_dim) = (
        torch_dtype(draw.one_of(DTYPES)),
        1 + draw.below(5),
        _stored(draw, STORED if stores else DECODED),
    )
    page, pages, tidy = draw.one_of(PAGE_SIZES), draw.below(4), draw.chance(TIDY)
    tokens = draw.size(max(1, min(_MOST_SLOTS, limits.elements // (heads * head_dim))))
    value_dim = _value_dim(draw, head_dim)
    shape = (pages, heads, page, _token_bytes(format, head_dim, value_dim))
    slots = {
        "cache": _cache(draw, shape, "codes" if stores else draw.one_of(_BYTES), written=stores),
        "keys": vectors(draw, dtype, (tokens, heads, head_dim), tidy, written=not stores),
        "values": vectors(draw, dtype, (tokens, heads, value_dim), tidy, written=not stores),
        "slot_mapping": vector(draw, torch.int64, tokens, "places", ((tokens,),), reference_shape=(tokens,)),
    }
    plain = {"format": format, "seed": draw.below(1 << 40)}
    if stores:
        plain |= {"rotated_keys": draw.chance(0.2), "rotated_values": draw.chance(0.2)}
    return call(op, draw, slots, plain)


def _decode(draw: Draw) -> LegalCall:
    dtype, kv_heads, group = torch_dtype(draw.one_of(DTYPES)), 1 + draw.below(2), 1 + draw.below(MOST_OF_GROUP)
    page, pages, table_pages = draw.one_of(PAGE_SIZES), draw.below(4), draw.below(4)
    batch, rows, heads = draw.one_of((0, 1, 1, 2, 3)), draw.one_of((0, 1, 1, 1, 3, 8)), kv_heads * group
    seed = -1 if draw.chance(0.2) else draw.below(1 << 40)
    format, head_dim = _stored(draw, DECODED)
    value_dim = _value_dim(draw, head_dim)
    slots = {
        "out": vectors(draw, dtype, (batch, rows, heads, value_dim), draw.chance(TIDY), written=True),
        "q": vectors(draw, dtype, (batch, rows, heads, head_dim), draw.chance(TIDY)),
        "cache": _cache(draw, (pages, kv_heads, page, _token_bytes(format, head_dim, value_dim)), draw.one_of(_BYTES)),
        "block_table": matrix(draw, torch.int32, batch, table_pages, "codes"),
        "seq_lens": vector(draw, torch.int32, batch, "codes", ((batch,),), reference_shape=(batch,)),
    }
    if draw.chance(0.3):
        slots["sinks"] = vector(draw, torch.float32, heads, "normal", ((heads,),), reference_shape=(heads,))
    if draw.chance(0.7):
        shape = (batch, heads, rows)
        slots["lse"] = vector(
            draw, torch.float32, math.prod(shape), None, (shape,), written=True, reference_shape=shape
        )
    plain = {
        "format": format,
        "scale": draw.one_of((head_dim**-0.5, 1.0)),
        "seed": seed,
        "causal": draw.chance(0.7),
        "window": draw.one_of((0, 0, 1, 7, 100)),
        "softcap": draw.one_of((0.0, 0.0, 20.0)),
        "rotated_out": draw.chance(0.2),
    }
    return call(DECODE.name, draw, slots, plain)


def _value_dim(draw: Draw, head_dim: int) -> int:
    """Elements of a value: as many as a key has, or fewer."""
    found: int = draw.one_of((head_dim, *VALUE_DIMS.get(head_dim, ())))
    return found


def _token_bytes(format: str, head_dim: int, value_dim: int) -> int:
    _, key_bits, value_bits = FORMATS[format]
    return (head_dim * key_bits + value_dim * value_bits) // 8 + 4


def _stored(draw: Draw, formats: tuple[str, ...]) -> tuple[str, int]:
    """A random format, and one of its head dims."""
    head_dim = draw.one_of(HEAD_DIMS)
    fit = [name for name in formats if head_dim == COMMON_HEAD_DIM or FORMATS[name][1] == FORMATS[name][2]]
    return draw.one_of(fit), head_dim
