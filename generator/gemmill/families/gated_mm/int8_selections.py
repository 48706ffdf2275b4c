"""The gated GEMMs of s8, for activations that layers mostly have."""

from collections.abc import Iterator
from itertools import product

from gemmill.families.gated_mm.config import Activation, GatedConfig, Result
from gemmill.families.gated_mm.int8_config import (
    Int8ExpertGatedConfig,
    Int8GatedConfig,
    Int8GatheredGatedConfig,
    Int8UnalignedGatedConfig,
)
from gemmill.vocab import Accumulation, Arch, DType, KernelSchedule

BASIC, COOPERATIVE, PINGPONG = KernelSchedule.BASIC, KernelSchedule.COOPERATIVE, KernelSchedule.PINGPONG
_OFTEN = (Activation.SILU, Activation.SWIGLU)
_NUMBERS = (((64, 16, 256), BASIC, True), ((128, 64, 128), COOPERATIVE, True), ((128, 192, 128), PINGPONG, False))
_TILES = {
    Result.BF16: _NUMBERS,
    Result.STATIC: _NUMBERS,
    Result.GROUP: (
        ((256, 16, 128), COOPERATIVE, True),
        ((256, 64, 128), COOPERATIVE, True),
        ((64, 256, 128), PINGPONG, False),
    ),
}
"""Tiles for few rows, some and many, schedules, and whether weights fill the tensor core's rows: those of e4m3."""


def of_int8(arch: Arch) -> Iterator[GatedConfig | Int8UnalignedGatedConfig]:
    """The kernels of s8: dense ones, those of experts' rows in order and gathered, and for each result one that takes
    operands as TMA does not. Gathered rows have tiles for few and some of them."""
    if arch is not Arch.SM90A:
        return
    kinds = (Int8GatedConfig, Int8ExpertGatedConfig, Int8GatheredGatedConfig)
    for activation, result, kind in product(_OFTEN, Result, kinds):
        for tile, schedule, swap_ab in _TILES[result][: 2 if kind.indexed else 3]:
            yield kind(
                dtype=DType.S8,
                result=result,
                activation=activation,
                tile_shape_mnk=tile,
                kernel_schedule=schedule,
                accumulation=Accumulation.EXACT,
                swap_ab=swap_ab,
                arch=arch,
            )
    for result in Result:
        yield Int8UnalignedGatedConfig(dtype=DType.S8, result=result, arch=arch)
