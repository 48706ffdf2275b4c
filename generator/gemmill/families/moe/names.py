"""The fields of a kernel's name, and back."""

import re
from collections.abc import Sequence

from gemmill.families.moe.biased_config import BiasedGroupedConfig, BiasedUnalignedGroupedConfig
from gemmill.families.moe.config import FP4_FORMATS, GroupedConfig, PackedGroupedConfig, UnalignedGroupedConfig
from gemmill.vocab import Accumulation, Arch, DType, KernelSchedule

_INDEXED = "indexed"
_OF_TAG = {kind.tag: kind for kind in (GroupedConfig, BiasedGroupedConfig)}
_UNALIGNED_OF_TAG = {kind.tag: kind for kind in (UnalignedGroupedConfig, BiasedUnalignedGroupedConfig)}


def to_fields(config: GroupedConfig) -> list[str]:
    """Fields: dtype, results, scales, "indexed" where rows are gathered, tile, cluster, schedule, accumulation, order,
    stages."""
    tile, cluster = ("x".join(map(str, shape)) for shape in (config.tile_shape_mnk, config.cluster_shape_mnk))
    return [
        config.dtype.value,
        config.out_dtype.value,
        _scales(config),
        *((_INDEXED,) if config.indexed else ()),
        f"t{tile}",
        f"c{cluster}",
        config.kernel_schedule.value,
        config.accumulation.value,
        "swapab" if config.swap_ab else "ab",
        f"s{config.stages or 'auto'}",
    ]


def from_fields(arch: Arch, tag: str, fields: Sequence[str]) -> GroupedConfig:
    """The config that `to_fields` spelled. Raises ValueError, naming the field that cannot be read."""
    indexed = _INDEXED in fields[3:4]
    if len(fields) != 9 + indexed:
        raise ValueError(f"it has {len(fields) + 2} fields of {11 + indexed}")
    dtype, out, scales, *_, tile, cluster, schedule, accumulation, order, stages = fields
    if order not in ("ab", "swapab"):
        raise ValueError(f"operand order {order!r}, expected ab or swapab")
    told = _matched(r"s(auto|[1-9]\d*)", stages, f"stages {stages!r}, expected sauto or s and a number")[1]
    return _OF_TAG[tag](
        dtype=DType(dtype),
        out_dtype=DType(out),
        group_size=_group_size(DType(dtype), scales),
        indexed=indexed,
        tile_shape_mnk=_shape("t", tile),
        cluster_shape_mnk=_shape("c", cluster),
        kernel_schedule=KernelSchedule(schedule),
        accumulation=Accumulation(accumulation),
        swap_ab=order == "swapab",
        stages=None if told == "auto" else int(told),
        arch=arch,
    )


def unaligned_to_fields(config: UnalignedGroupedConfig) -> list[str]:
    """Fields: dtype, results, scales."""
    return [config.dtype.value, config.out_dtype.value, _scales(config)]


def unaligned_from_fields(arch: Arch, tag: str, fields: Sequence[str]) -> UnalignedGroupedConfig:
    """The config that `unaligned_to_fields` spelled. Raises ValueError, naming the field that cannot be read."""
    if len(fields) != 3:
        raise ValueError(f"it has {len(fields) + 2} fields of 5")
    dtype, out, scales = fields
    return _UNALIGNED_OF_TAG[tag](
        dtype=DType(dtype), out_dtype=DType(out), group_size=_group_size(DType(dtype), scales), arch=arch
    )


def packed_to_fields(config: PackedGroupedConfig) -> list[str]:
    """Fields: dtype, format, results, tile, stages."""
    tile = f"t{config.tile_m}x{config.tile_n}"
    return [config.dtype.value, str(config.format), config.out_dtype.value, tile, f"s{config.stages}"]


def packed_from_fields(arch: Arch, _tag: str, fields: Sequence[str]) -> PackedGroupedConfig:
    """The config that `packed_to_fields` spelled. Raises ValueError, naming the field that cannot be read."""
    if len(fields) != 5:
        raise ValueError(f"it has {len(fields) + 2} fields of 7")
    dtype, name, out, tile, stages = fields
    known = {str(format): format for format in FP4_FORMATS}
    if name not in known:
        raise ValueError(f"weights {name!r}, expected {' or '.join(known)}")
    sizes = _matched(r"t(\d+)x(\d+)", tile, f"tile {tile!r}, expected tMxN")
    return PackedGroupedConfig(
        dtype=DType(dtype),
        format=known[name],
        out_dtype=DType(out),
        tile_m=int(sizes[1]),
        tile_n=int(sizes[2]),
        stages=int(_matched(r"s([1-9]\d*)", stages, f"stages {stages!r}, expected s and a number")[1]),
        arch=arch,
    )


def _scales(config: GroupedConfig | UnalignedGroupedConfig) -> str:
    return f"group{config.group_size}" if config.group_size else "channel" if config.scaled else "plain"


def _group_size(dtype: DType, scales: str) -> int:
    kind = "plain" if dtype.bits == 16 else "channel"
    group = _matched(rf"{kind}|group([1-9]\d*)", scales, f"scales {scales!r}, expected {kind} or group and a number")[1]
    return int(group or 0)


def _shape(prefix: str, text: str) -> tuple[int, int, int]:
    match = _matched(rf"{prefix}(\d+)x(\d+)x(\d+)", text, f"shape {text!r}, expected {prefix}MxNxK")
    m, n, k = map(int, match.groups())
    return m, n, k


def _matched(pattern: str, text: str, otherwise: str) -> re.Match[str]:
    if (match := re.fullmatch(pattern, text)) is None:
        raise ValueError(otherwise)
    return match
