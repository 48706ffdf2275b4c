"""The kernels of the named selections."""

from collections.abc import Iterator
from itertools import product

from gemmill.families.moe.config import GROUP, GroupedConfig
from gemmill.vocab import Accumulation, Arch, DType, KernelSchedule

BASIC, COOPERATIVE, PINGPONG = KernelSchedule.BASIC, KernelSchedule.COOPERATIVE, KernelSchedule.PINGPONG
_CHANNEL = (
    ((64, 16, 256), (1, 1, 1), BASIC, True, None),
    ((128, 16, 256), (1, 1, 1), COOPERATIVE, True, None),
    ((128, 32, 256), (1, 1, 1), COOPERATIVE, True, None),
    ((128, 64, 128), (1, 1, 1), COOPERATIVE, True, None),
    ((128, 128, 128), (1, 1, 1), PINGPONG, True, None),
    ((128, 128, 128), (1, 2, 1), PINGPONG, False, None),
    ((128, 192, 128), (1, 1, 1), PINGPONG, False, None),
)
"""Tile, cluster, schedule, whether weights fill the tensor core's rows, stages."""
_GROUP = (
    ((64, 16, 256), (1, 1, 1), BASIC, True, 4),
    ((128, 32, 256), (1, 1, 1), COOPERATIVE, True, None),
    ((64, 128, 128), (1, 1, 1), BASIC, False, None),
    ((128, 128, 128), (1, 1, 1), COOPERATIVE, False, None),
    ((128, 128, 128), (1, 2, 1), COOPERATIVE, False, None),
)
"""The fastest of 27 kernels at 30 points, or nearly so (docs/notes/moe.md)."""


def default(arch: Arch) -> Iterator[GroupedConfig]:
    """Of e4m3 with both kinds of scales and of s8, on sm90a."""
    if arch is not Arch.SM90A:
        return
    for (dtype, group), out in product(((DType.E4M3, 0), (DType.E4M3, GROUP), (DType.S8, 0)), (DType.BF16, DType.F16)):
        accumulation = Accumulation.PROMOTED if group else Accumulation.FAST
        if dtype is DType.S8:
            accumulation = Accumulation.EXACT
        for tile, cluster, schedule, swap_ab, stages in _GROUP if group else _CHANNEL:
            yield GroupedConfig(
                dtype=dtype,
                out_dtype=out,
                group_size=group,
                tile_shape_mnk=tile,
                cluster_shape_mnk=cluster,
                kernel_schedule=schedule,
                accumulation=accumulation,
                swap_ab=swap_ab,
                stages=stages,
                arch=arch,
            )


_SMOKE = (((64, 16, 256), True), ((128, 192, 128), False), ((64, 128, 128), False))


def smoke(arch: Arch) -> Iterator[GroupedConfig]:
    """Of e4m3 to bf16, a tile for few rows and one for many, with both kinds of scales."""
    for config in default(arch):
        is_common = config.dtype is DType.E4M3 and config.out_dtype is DType.BF16
        if is_common and (config.tile_shape_mnk, config.swap_ab) in _SMOKE:
            yield config
