"""Names of the compressed cache's kernels: their fields, and the config that fields spell."""

import re
from collections.abc import Sequence
from typing import Any

from gemmill.families.kv_cache.config import HALF_WAVES, WITHOUT_BITS, Kind, KvCacheConfig, Slots
from gemmill.vocab import Arch, DType


def to_fields(config: KvCacheConfig) -> list[str]:
    """The fields of a config's name: kind, dtype, head_dim, then bits of keys and values, or the format of slots.

    Half waves come last where they are not the default.
    """
    fields = [config.kind.value, config.dtype.value, f"d{config.head_dim}"]
    if config.slots is not Slots.ANY:
        fields.append(config.slots.value)
    elif config.kind not in WITHOUT_BITS:
        fields.append(f"k{config.key_bits}v{config.value_bits}")
    return fields if config.half_waves == HALF_WAVES[0] else [*fields, f"w{config.half_waves}"]


def from_fields(arch: Arch, _tag: str, fields: Sequence[str]) -> KvCacheConfig:
    """The config that `to_fields` spelled. Raises ValueError, naming the field that cannot be read."""
    kind, setting = Kind(fields[0]), re.fullmatch(r"w(\d)", fields[-1])
    fields = fields if setting is None else fields[:-1]
    has_slots = kind is Kind.ATTEND and len(fields) == 4
    count = 3 if kind in WITHOUT_BITS and not has_slots else 4
    if len(fields) != count:
        raise ValueError(f"it has {len(fields) + 2} fields of {count + 2}")
    told: dict[str, Any] = {
        "kind": kind,
        "dtype": DType(fields[1]),
        "head_dim": _number("head_dim", "d", fields[2]),
        "half_waves": HALF_WAVES[0] if setting is None else int(setting[1]),
        "arch": arch,
    }
    if has_slots:
        return KvCacheConfig(**told, slots=Slots(fields[3]))
    if kind in WITHOUT_BITS:
        return KvCacheConfig(**told)
    bits = re.fullmatch(r"k(\d)v(\d)", fields[3])
    if bits is None:
        raise ValueError(f"bits {fields[3]!r}, expected k, a digit, v and a digit")
    return KvCacheConfig(**told, key_bits=int(bits[1]), value_bits=int(bits[2]))


def _number(what: str, letter: str, text: str) -> int:
    match = re.fullmatch(rf"{letter}(\d{{1,3}})", text)
    if match is None:
        raise ValueError(f"{what} {text!r}, expected {letter} and a number")
    return int(match[1])
