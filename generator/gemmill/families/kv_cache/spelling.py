"""Spelling a KvCacheConfig in CUDA C++: which template, and what fills its holes."""

import struct
from collections.abc import Iterable
from typing import Any

from gemmill.families.kv_cache.codebooks import codebook
from gemmill.families.kv_cache.config import Kind, KvCacheConfig
from gemmill.family import Spelled
from gemmill.vocab import DType

_CPP_ELEMENT = {DType.BF16: "__nv_bfloat16", DType.F16: "__half"}


def spell(config: KvCacheConfig) -> Spelled:
    """The template of its kind, and what fills the holes."""
    values: dict[str, Any] = {"element": _CPP_ELEMENT[config.dtype], "head_dim": config.head_dim}
    sides = {"key": config.key_bits, "value": config.value_bits}
    match config.kind:
        case Kind.COMPRESS:
            for side, bits in sides.items():
                values |= {f"{side}_bits": bits, f"{side}_book": _book(config.head_dim, bits)}
        case Kind.DECODE | Kind.DECOMPRESS:
            values |= {f"{side}_bits": bits for side, bits in sides.items()}
            values["centroids"] = _centroids(config.head_dim, sides.values())
    return Spelled(template=f"kv_cache/{config.kind.template}.cu.jinja", values=values)


def _book(head_dim: int, bits: int) -> str:
    """Centroids, then the boundaries between them, rounded to f32: a `Codebook`."""
    book = codebook(head_dim, bits)
    return _braced([_braced(map(_float, part)) for part in (book.centroids, book.boundaries)])


def _centroids(head_dim: int, sides: Iterable[int]) -> str:
    """All centroids of keys and of values as bits of f16: `Centroids`."""
    books = (codebook(head_dim, bits).centroids for bits in sides)
    return _braced([_braced([_braced(map(_bits_of_f16, book)) for book in books])])


def _braced(items: Iterable[str]) -> str:
    return f"{{{', '.join(items)}}}"


def _float(value: float) -> str:
    """In nine digits, by which a compiler reads the same bits."""
    (nearest,) = struct.unpack("f", struct.pack("f", value))
    return f"{nearest:.8e}f"


def _bits_of_f16(value: float) -> str:
    return f"0x{struct.unpack('<H', struct.pack('<e', value))[0]:04x}"
