"""What `gemmill explain` asks about an op of the compressed cache: arguments without data, from sizes and options."""

from typing import Any

from gemmill.families.kv_cache.cases.calls import CompressCase, DecodeCase, DecompressCase, HadamardCase
from gemmill.families.kv_cache.config import FORMATS
from gemmill.families.kv_cache.ops import COMPRESS, DECODE, DECOMPRESS, HADAMARD
from gemmill.numerics.cases import Question, refuse_unused
from gemmill.vocab import DType

_READ = {
    HADAMARD.name: ("m", "dtype", "head_dim"),
    COMPRESS.name: ("m", "dtype", "head_dim", "format", "kv_heads", "page"),
    DECOMPRESS.name: ("m", "dtype", "head_dim", "format", "kv_heads", "page"),
    DECODE.name: ("m", "dtype", "head_dim", "format", "batch", "heads", "kv_heads", "length", "page"),
}
"""Options that each op has a meaning for."""
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
    """The op's arguments on torch's meta device. Raises ValueError for what the op does not take."""
    refuse_unused(op, question)
    for name in _DEFAULTS:
        if question[name] is not None and name not in _READ[op]:
            raise ValueError(f"{op} with --{name.replace('_', '-')}: it is told by {', '.join(_READ[op])}")
    told: dict[str, Any] = _DEFAULTS | {name: question[name] for name in _READ[op] if question[name] is not None}
    dtype = DType(question["dtype"] or DType.BF16)
    if told["format"] not in FORMATS:
        raise ValueError(f"format is {told['format']!r}, expected one of {', '.join(FORMATS)}")
    if op == HADAMARD.name:
        return HadamardCase(rows=told["m"], columns=told["head_dim"], dtype=dtype).arguments("meta")
    own: dict[str, Any] = {name: told[name] for name in ("format", "head_dim", "kv_heads", "page")} | {"dtype": dtype}
    if op == COMPRESS.name:
        return CompressCase(tokens=told["m"], **own).arguments("meta")
    if op == DECOMPRESS.name:
        return DecompressCase(tokens=told["m"], **own).arguments("meta")
    lengths = (told["length"],) * told["batch"]
    return DecodeCase(lengths=lengths, rows=told["m"], heads=told["heads"], **own).arguments("meta")
