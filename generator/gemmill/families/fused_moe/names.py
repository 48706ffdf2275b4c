"""The fields of a kernel's name, and back."""

import re
from collections.abc import Sequence

from gemmill.families.fused_moe.config import CODED, ExpertsConfig, PackedExpertsConfig
from gemmill.families.fused_moe.packing import PACKINGS, Packing
from gemmill.vocab import Arch, DType


def to_fields(config: ExpertsConfig) -> list[str]:
    """The fields of a config's name: dtype, out_dtype, scales, tile, which ends in s where weights are streamed."""
    scales = f"group{config.group_size}" if config.group_size else "rows" if config.is_coded else "plain"
    return [config.dtype.value, config.out_dtype.value, scales, f"t{config.tile_tokens}{'s' * config.streamed}"]


def from_fields(arch: Arch, _tag: str, fields: Sequence[str]) -> ExpertsConfig:
    """The config that `to_fields` spelled. Raises ValueError, naming the field that cannot be read."""
    if len(fields) != 4:
        raise ValueError(f"it has {len(fields) + 2} fields of 6")
    dtype, out_dtype, scales, tile = fields
    group, rows = re.fullmatch(r"group([1-9]\d*)|rows|plain", scales), re.fullmatch(r"t([1-9]\d*)(s?)", tile)
    if group is None:
        raise ValueError(f"scales {scales!r}, expected group and a number, rows or plain")
    if rows is None:
        raise ValueError(f"tile {tile!r}, expected t and a number of rows, then s where weights are streamed")
    config = ExpertsConfig(
        dtype=DType(dtype),
        out_dtype=DType(out_dtype),
        group_size=int(group[1] or 0),
        tile_tokens=int(rows[1]),
        streamed=bool(rows[2]),
        arch=arch,
    )
    if (spelled := to_fields(config)[2]) != scales:
        raise ValueError(f"scales {scales!r} of {dtype}, which has {spelled!r}")
    return config


def _words_of(packing: Packing) -> tuple[str, ...]:
    """The fields that say how weights are packed."""
    sparse = (f"sparse{packing.sparse_group}",) if packing.sparse_group else ()
    return str(packing.format), *sparse, *(("e4m3",) if packing.is_coded else ())


def packed_to_fields(config: PackedExpertsConfig) -> list[str]:
    """The fields of a config's name: format, what there is to say of it, tile."""
    return [*_words_of(config.packing), f"t{config.tile_tokens}{'w' * config.wide}{'o' * config.ordered}"]


def packed_from_fields(arch: Arch, _tag: str, fields: Sequence[str]) -> PackedExpertsConfig:
    """The config that `packed_to_fields` spelled. Raises ValueError, naming the field that cannot be read."""
    if len(fields) not in (2, 3):
        raise ValueError(f"it has {len(fields) + 2} fields of 4 or 5")
    *words, tile = fields
    known = {_words_of(packing): packing for packing in PACKINGS}
    if tuple(words) not in known:
        raise ValueError(f"weights {'_'.join(words)!r}, expected {', '.join('_'.join(spelled) for spelled in known)}")
    packing = known[tuple(words)]
    rows = re.fullmatch(r"t([1-9]\d*)(w?)(o?)", tile)
    if rows is None:
        raise ValueError(
            f"tile {tile!r}, expected t and a number of rows, then w where it is wide, o where rows come in order"
        )
    return PackedExpertsConfig(
        format=packing.format,
        sparse_group=packing.sparse_group,
        activations=CODED if packing.is_coded else DType.BF16,
        tile_tokens=int(rows[1]),
        wide=bool(rows[2]),
        ordered=bool(rows[3]),
        arch=arch,
    )
