"""Names of sparse GEMMs: their fields, and the config that fields spell."""

import re
from collections.abc import Sequence

from gemmill.families.sparse_mm.config import SparseConfig
from gemmill.vocab import Accumulation, Arch, DType, EpilogueKind, KernelSchedule, RasterOrder


def to_fields(config: SparseConfig) -> list[str]:
    """The fields of a config's name, then launch settings that are not the defaults.

    They are dtype, result, epilogue, tile, cluster, schedule, accumulation and stages.
    """
    tile, cluster = ("x".join(map(str, shape)) for shape in (config.tile_shape_mnk, config.cluster_shape_mnk))
    fields = [
        config.dtype.value,
        config.out_dtype.value,
        config.epilogue.value,
        f"t{tile}",
        f"c{cluster}",
        config.kernel_schedule.value,
        config.accumulation.value,
        f"s{config.stages or 'auto'}",
    ]
    if config.raster_order is not RasterOrder.HEURISTIC:
        fields.append(f"r{config.raster_order}")
    if config.swizzle != 1:
        fields.append(f"w{config.swizzle}")
    return fields


def from_fields(arch: Arch, _tag: str, fields: Sequence[str]) -> SparseConfig:
    """The config that `to_fields` spelled. Raises ValueError, naming the field that cannot be read."""
    if not 8 <= len(fields) <= 10:
        raise ValueError(f"it has {len(fields) + 2} fields, expected 10 to 12")
    dtype, out, epilogue, tile, cluster, schedule, accumulation, stages, *launch = fields
    told = _matched(r"s(auto|[1-9]\d*)", stages, f"stages {stages!r}, expected sauto or s and a number")[1]
    raster, swizzle = RasterOrder.HEURISTIC, 1
    if launch and launch[0].startswith("r"):
        raster = RasterOrder(launch.pop(0)[1:])
    if launch:
        swizzle = int(_matched(r"w([248])", launch.pop(0), f"swizzle {fields[-1]!r}, expected w2, w4 or w8")[1])
    if launch:
        raise ValueError(f"launch settings {'_'.join(fields[8:])!r}, expected r and an order, then w and a number")
    return SparseConfig(
        dtype=DType(dtype),
        out_dtype=DType(out),
        epilogue=EpilogueKind(epilogue),
        tile_shape_mnk=_shape("t", tile),
        cluster_shape_mnk=_shape("c", cluster),
        kernel_schedule=KernelSchedule(schedule),
        accumulation=Accumulation(accumulation),
        stages=None if told == "auto" else int(told),
        raster_order=raster,
        swizzle=swizzle,
        arch=arch,
    )


def _shape(prefix: str, text: str) -> tuple[int, int, int]:
    match = _matched(rf"{prefix}(\d+)x(\d+)x(\d+)", text, f"shape {text!r}, expected {prefix}MxNxK")
    m, n, k = map(int, match.groups())
    return m, n, k


def _matched(pattern: str, text: str, otherwise: str) -> re.Match[str]:
    if (match := re.fullmatch(pattern, text)) is None:
        raise ValueError(otherwise)
    return match
