"""The arguments that `gemmill explain` asks about an op of the compressed cache: without data, from sizes and
options."""

from typing import Any

from gemmill.families.kv_cache.cases.calls import CompressCase, DecodeCase, DecompressCase, HadamardCase
from gemmill.families.kv_cache.cases.latent_calls import LatentCase
from gemmill.families.kv_cache.cases.packed_calls import AttendCase, PackCase, ScoresCase, UnpackCase
from gemmill.families.kv_cache.config import FORMATS
from gemmill.families.kv_cache.latent import LATENT_FORMATS
from gemmill.families.kv_cache.latent_ops import LATENT
from gemmill.families.kv_cache.ops import COMPRESS, DECODE, DECOMPRESS, HADAMARD
from gemmill.families.kv_cache.packed import CACHE_FORMATS, KEY_FORMATS, VALUE_FORMATS
from gemmill.families.kv_cache.packed_ops import (
    ATTENTION,
    COMPRESS_KEYS,
    COMPRESS_VALUES,
    DECOMPRESS_KEYS,
    DECOMPRESS_VALUES,
    SCORES,
)
from gemmill.numerics.cases import Question, refuse_unused
from gemmill.vocab import DType

_READ: dict[str, tuple[str, ...]] = {
    HADAMARD.name: ("m", "dtype", "head_dim"),
    COMPRESS.name: ("m", "dtype", "head_dim", "format", "kv_heads", "page"),
    DECOMPRESS.name: ("m", "dtype", "head_dim", "format", "kv_heads", "page"),
    DECODE.name: ("m", "dtype", "head_dim", "format", "batch", "heads", "kv_heads", "length", "page"),
} | dict.fromkeys(
    (x.name for x in (COMPRESS_KEYS, COMPRESS_VALUES, DECOMPRESS_KEYS, DECOMPRESS_VALUES)),
    ("m", "dtype", "head_dim", "format", "kv_heads"),
)
_READ[LATENT.name] = ("m", "dtype", "format", "batch", "heads", "length", "page")
_READ[SCORES.name] = ("m", "dtype", "head_dim", "format", "batch", "heads", "kv_heads", "length")
_READ[ATTENTION.name] = (*_READ[SCORES.name], "page")
"""The options that each op has a meaning for."""
_DEFAULTS: dict[str, Any] = {
    "head_dim": 128,
    "format": "k_eden4_v_eden4",
    "batch": 1,
    "heads": 32,
    "kv_heads": 8,
    "length": 4096,
    "page": 64,
}


def asked(op: str, question: Question) -> list[Any]:
    """The op's arguments on torch's meta device, in the order of its schema. Raises ValueError for an option that the
    op does not take."""
    refuse_unused(op, question)
    for name in _DEFAULTS:
        if question[name] is not None and name not in _READ[op]:
            raise ValueError(f"{op} with --{name.replace('_', '-')}: it is told by {', '.join(_READ[op])}")
    formats, format = _formats(op)
    told: dict[str, Any] = (
        _DEFAULTS | {"format": format} | {name: question[name] for name in _READ[op] if question[name] is not None}
    )
    dtype = DType(question["dtype"] or DType.BF16)
    if told["format"] not in formats:
        raise ValueError(f"format is {told['format']!r}, expected one of {', '.join(formats)}")
    if op == HADAMARD.name:
        return HadamardCase(rows=told["m"], columns=told["head_dim"], dtype=dtype).arguments("meta")
    own: dict[str, Any] = {name: told[name] for name in ("format", "head_dim", "kv_heads", "page")} | {"dtype": dtype}
    if op == COMPRESS.name:
        return CompressCase(tokens=told["m"], **own).arguments("meta")
    if op == DECOMPRESS.name:
        return DecompressCase(tokens=told["m"], **own).arguments("meta")
    if op in (COMPRESS_KEYS.name, COMPRESS_VALUES.name, DECOMPRESS_KEYS.name, DECOMPRESS_VALUES.name):
        case_of = PackCase if op in (COMPRESS_KEYS.name, COMPRESS_VALUES.name) else UnpackCase
        sides = {"of_values": op in (COMPRESS_VALUES.name, DECOMPRESS_VALUES.name), "heads": told["kv_heads"]}
        vectors = {"format": told["format"], "head_dim": told["head_dim"], "dtype": dtype}
        return case_of(tokens=told["m"], **vectors, **sides).arguments("meta")
    lengths = (told["length"],) * told["batch"]
    if op == LATENT.name:
        latent = {name: told[name] for name in ("format", "heads", "page")}
        return LatentCase(lengths=lengths, rows=told["m"], dtype=dtype, **latent).arguments("meta")
    if op == SCORES.name:
        del own["page"]
        return ScoresCase(
            length=told["length"], batch=told["batch"], rows=told["m"], heads=told["heads"], **own
        ).arguments("meta")
    if op == ATTENTION.name:
        return AttendCase(lengths=lengths, rows=told["m"], heads=told["heads"], **own).arguments("meta")
    return DecodeCase(lengths=lengths, rows=told["m"], heads=told["heads"], **own).arguments("meta")


def _formats(op: str) -> tuple[tuple[str, ...], str]:
    """The formats that an op takes, and its default."""
    if op in (COMPRESS_VALUES.name, DECOMPRESS_VALUES.name):
        return tuple(VALUE_FORMATS), "eden4"
    if op in (COMPRESS_KEYS.name, DECOMPRESS_KEYS.name, SCORES.name):
        return tuple(KEY_FORMATS), "eden4"
    if op == LATENT.name:
        return tuple(LATENT_FORMATS), "eden4"
    return CACHE_FORMATS if op == ATTENTION.name else tuple(FORMATS), _DEFAULTS["format"]
