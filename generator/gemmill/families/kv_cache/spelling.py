"""The spelling of a KvCacheConfig in CUDA C++: a template, and the values of its holes."""

import struct
from collections.abc import Iterable
from typing import Any

from gemmill.families.kv_cache.codebooks import codebook
from gemmill.families.kv_cache.config import OF_ANY_FORMAT, KernelKind, KvCacheConfig, Slots
from gemmill.families.kv_cache.formats import Method, VectorFormat
from gemmill.families.kv_cache.packed import KEY_FORMATS, POWERS_OF_TWO, VALUE_FORMATS
from gemmill.families.kv_cache.vllm_codebooks import vllm_codebook
from gemmill.family import Spelled
from gemmill.vocab import DType
from gemmill.vocab.float_type import E2M1

_CPP_ELEMENT = {DType.BF16: "__nv_bfloat16", DType.F16: "__half"}


def spell(config: KvCacheConfig) -> Spelled:
    """The template of a config's kind, and the values of its holes."""
    x = config.operands
    values: dict[str, Any] = {"element": _CPP_ELEMENT[x.dtype], "head_dim": x.head_dim}
    sides = {"key": x.key_bits, "value": x.value_bits}
    dims = {"key": x.head_dim, "value": x.value_dim or x.head_dim}
    own_dims = (x.head_dim, x.value_dim) if x.value_dim else (x.head_dim,)
    match config.kind:
        case KernelKind.COMPRESS:
            for side, bits in sides.items():
                values |= {f"{side}_bits": bits, f"{side}_book": _book(dims[side], bits)}
            values["dims"] = ", ".join(map(str, own_dims))
        case KernelKind.DECODE | KernelKind.DECOMPRESS:
            head_dim, *value_dim = own_dims
            values["dims"] = ", ".join(map(str, own_dims))
            values["sizes"] = ", ".join(map(str, (head_dim, x.key_bits, x.value_bits, *value_dim)))
            values["centroids"] = _centroids((dims[side], bits) for side, bits in sides.items())
        case KernelKind.LATENT:
            values["centroids"] = _centroids((x.head_dim, bits) for bits in sides.values())
            values["tile_rows"] = config.tile_rows
            values["rotary_is_e4m3"] = str(x.rotary is DType.E4M3).lower()
        case KernelKind.ATTEND if x.slots is not Slots.ANY:
            keys, values_format = (
                of[name] for of, name in zip((KEY_FORMATS, VALUE_FORMATS), x.slots.sides, strict=True)
            )
            values |= {"keys": _key_reader(x.head_dim, keys), "values": _value_reader(x.head_dim, values_format)}
            tables = (_table(x.head_dim, keys), _table(x.head_dim, values_format))
            values["centroids"] = _braced([_braced([_braced(map(_bits_of_f16, table)) for table in tables])])
        case kind if kind in OF_ANY_FORMAT:
            values["books"] = _books(x.head_dim)
    return Spelled(template=f"kv_cache/{config.template}.cu.jinja", values=values)


def _book(head_dim: int, bits: int) -> str:
    """A `Codebook` in C++: centroids, then the boundaries between them, rounded to f32."""
    book = codebook(head_dim, bits)
    return _braced([_braced(map(_float, part)) for part in (book.centroids, book.boundaries)])


def _books(head_dim: int) -> str:
    """`Books` in C++: ours of 1 to 4 bits, then vLLM's of 3 and 4, where its keys have such head dims."""
    own = [codebook(head_dim, bits) for bits in (1, 2, 3, 4)]
    foreign = [vllm_codebook(head_dim, bits) for bits in (3, 4)] if head_dim in POWERS_OF_TWO else []
    spelled = [
        _braced([_braced([_braced(map(_float, part)) for part in (book.centroids, book.boundaries)]) for book in books])
        for books in (own, foreign)
    ]
    return _braced(spelled)


def _centroids(sides: Iterable[tuple[int, int]]) -> str:
    """`Centroids` in C++: all centroids of keys and of values as bits of f16, from elements and bits of each."""
    books = (codebook(*side).centroids for side in sides)
    return _braced([_braced([_braced(map(_bits_of_f16, book)) for book in books])])


def _key_reader(head_dim: int, format: VectorFormat) -> str:
    """The class of kernels/kv_cache/slots/slot_readers.cuh that reads keys of a format."""
    match format.method:
        case Method.E4M3:
            return f"E4m3Keys<{head_dim}>"
        case Method.E2M1:
            return f"E2m1Keys<{head_dim}>"
        case Method.TURBOQUANT_PROD:
            return f"ProdKeys<{head_dim}, {format.bits}>"
    return f"CentroidKeys<{head_dim}, {format.bits}, {str(format.method is Method.UNIT_CENTROIDS).lower()}>"


def _value_reader(head_dim: int, format: VectorFormat) -> str:
    match format.method:
        case Method.E4M3:
            return f"E4m3Values<{head_dim}>"
        case Method.E2M1:
            return f"E2m1Values<{head_dim}>"
        case Method.UNIFORM:
            return f"UniformValues<{head_dim}, {format.bits}>"
    return f"CentroidValues<{head_dim}, {format.bits}>"


def _table(head_dim: int, format: VectorFormat) -> Iterable[float]:
    """The values of codes, for kernels that look them up in a table."""
    match format.method:
        case Method.E2M1:
            return E2M1.values
        case Method.UNIT_CENTROIDS:
            return vllm_codebook(head_dim, format.bits).centroids
        case Method.UNIFORM | Method.E4M3:
            return ()
    return codebook(head_dim, format.code_bits).centroids


def _braced(items: Iterable[str]) -> str:
    return f"{{{', '.join(items)}}}"


def _float(value: float) -> str:
    """A float of C++ in nine digits, which a compiler reads as the same bits."""
    (nearest,) = struct.unpack("f", struct.pack("f", value))
    return f"{nearest:.8e}f"


def _bits_of_f16(value: float) -> str:
    return f"0x{struct.unpack('<H', struct.pack('<e', value))[0]:04x}"
