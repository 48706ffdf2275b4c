"""Names of gated GEMMs: their fields, and the config that fields spell."""

import re
from collections.abc import Sequence

from gemmill.families.gated_mm.config import (
    Activation,
    ExpertGatedConfig,
    ExpertGroupGatedConfig,
    GatedConfig,
    GatheredGatedConfig,
    GatheredGroupGatedConfig,
    GroupGatedConfig,
    Result,
    UnalignedGatedConfig,
)
from gemmill.families.gated_mm.int8_config import (
    Int8ExpertGatedConfig,
    Int8GatedConfig,
    Int8GatheredGatedConfig,
    Int8UnalignedGatedConfig,
)
from gemmill.vocab import Accumulation, Arch, DType, KernelSchedule

_KINDS = (
    GatedConfig,
    GroupGatedConfig,
    ExpertGatedConfig,
    ExpertGroupGatedConfig,
    GatheredGatedConfig,
    GatheredGroupGatedConfig,
    Int8GatedConfig,
    Int8ExpertGatedConfig,
    Int8GatheredGatedConfig,
)
_OF_TAG = {kind.tag: kind for kind in _KINDS}
_UNALIGNED_OF_TAG = {kind.tag: kind for kind in (UnalignedGatedConfig, Int8UnalignedGatedConfig)}


def to_fields(config: GatedConfig) -> list[str]:
    """The fields of a config's name: dtype, result, activation, tile, cluster, schedule, accumulation, order,
    stages."""
    tile, cluster = ("x".join(map(str, shape)) for shape in (config.tile_shape_mnk, config.cluster_shape_mnk))
    return [
        config.dtype.value,
        config.result.value,
        config.activation.value,
        f"t{tile}",
        f"c{cluster}",
        config.kernel_schedule.value,
        config.accumulation.value,
        "swapab" if config.swap_ab else "ab",
        f"s{config.stages or 'auto'}",
    ]


def from_fields(arch: Arch, tag: str, fields: Sequence[str]) -> GatedConfig:
    """The config that `to_fields` spelled. Raises ValueError, naming the field that cannot be read."""
    if len(fields) != 9:
        raise ValueError(f"it has {len(fields) + 2} fields of 11")
    dtype, result, activation, tile, cluster, schedule, accumulation, order, stages = fields
    if order not in ("ab", "swapab"):
        raise ValueError(f"operand order {order!r}, expected ab or swapab")
    told = _matched(r"s(auto|[1-9]\d*)", stages, f"stages {stages!r}, expected sauto or s and a number")[1]
    return _OF_TAG[tag](
        dtype=DType(dtype),
        result=Result(result),
        activation=Activation(activation),
        tile_shape_mnk=_shape("t", tile),
        cluster_shape_mnk=_shape("c", cluster),
        kernel_schedule=KernelSchedule(schedule),
        accumulation=Accumulation(accumulation),
        swap_ab=order == "swapab",
        stages=None if told == "auto" else int(told),
        arch=arch,
    )


def unaligned_to_fields(config: UnalignedGatedConfig) -> list[str]:
    """The fields of a config's name: dtype, result."""
    return [config.dtype.value, config.result.value]


def unaligned_from_fields(arch: Arch, tag: str, fields: Sequence[str]) -> UnalignedGatedConfig:
    """The config that `unaligned_to_fields` spelled. Raises ValueError, naming the field that cannot be read."""
    if len(fields) != 2:
        raise ValueError(f"it has {len(fields) + 2} fields of 4")
    dtype, result = fields
    return _UNALIGNED_OF_TAG[tag](dtype=DType(dtype), result=Result(result), arch=arch)


def _shape(prefix: str, text: str) -> tuple[int, int, int]:
    match = _matched(rf"{prefix}(\d+)x(\d+)x(\d+)", text, f"shape {text!r}, expected {prefix}MxNxK")
    m, n, k = map(int, match.groups())
    return m, n, k


def _matched(pattern: str, text: str, otherwise: str) -> re.Match[str]:
    if (match := re.fullmatch(pattern, text)) is None:
        raise ValueError(otherwise)
    return match
