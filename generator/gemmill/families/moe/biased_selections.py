"""The grouped GEMMs that end with alpha and bias."""

from collections.abc import Iterator
from itertools import product

from gemmill.families.moe.biased_config import BiasedGroupedConfig, BiasedUnalignedGroupedConfig
from gemmill.families.moe.config import GROUP, OPERANDS
from gemmill.gemm.config import RESULTS_OF
from gemmill.vocab import Accumulation, Arch, DType, KernelSchedule

BASIC, COOPERATIVE, PINGPONG = KernelSchedule.BASIC, KernelSchedule.COOPERATIVE, KernelSchedule.PINGPONG
_CHANNEL = (
    ((64, 16, 256), BASIC, True, None),
    ((128, 64, 128), COOPERATIVE, True, None),
    ((128, 192, 128), PINGPONG, False, None),
)
_GROUP = (
    ((64, 16, 256), BASIC, True, 4),
    ((64, 128, 128), BASIC, False, None),
    ((128, 128, 128), COOPERATIVE, False, None),
)
"""Tile of 8-bit operands for few rows, some and many, schedule, whether weights fill the tensor core's rows, stages: those of
kernels without alpha and bias, with scales per token and channel, and in groups."""

_KEPT = ((64, 16), (128, 192), (128, 128))


def biased(arch: Arch) -> Iterator[BiasedGroupedConfig | BiasedUnalignedGroupedConfig]:
    """For each kind of operands, scales and results three tiles, two for gathered rows, and a kernel that takes operands as
    TMA does not."""
    for dtype in OPERANDS if arch is Arch.SM90A else ():
        for group, out in product((0, GROUP) if dtype is DType.E4M3 else (0,), RESULTS_OF[dtype]):
            yield BiasedUnalignedGroupedConfig(dtype=dtype, out_dtype=out, group_size=group, arch=arch)
            yield from _tiled(dtype, out, group, arch)


def kept(arch: Arch) -> Iterator[BiasedGroupedConfig | BiasedUnalignedGroupedConfig]:
    """Those of the default selection: tiles for few and for many rows in order, to bf16, and all that take any operands."""
    for config in biased(arch):
        if isinstance(config, BiasedUnalignedGroupedConfig) or (
            config.out_dtype is DType.BF16 and not config.indexed and config.tile_shape_mnk[:2] in _KEPT
        ):
            yield config


def _tiled(dtype: DType, out: DType, group: int, arch: Arch) -> Iterator[BiasedGroupedConfig]:
    accumulation = Accumulation.PROMOTED if group else Accumulation.FAST
    tiles = _GROUP if group else _CHANNEL
    gathered = (_GROUP[0], _GROUP[2]) if group else _CHANNEL[:2]
    for indexed, shapes in ((False, tiles), (True, gathered)):
        for (x, y, k), schedule, swap_ab, stages in shapes:
            yield BiasedGroupedConfig(
                dtype=dtype,
                out_dtype=out,
                group_size=group,
                indexed=indexed,
                tile_shape_mnk=(x, y, k * 8 // dtype.bits),
                kernel_schedule=schedule,
                accumulation=Accumulation.EXACT if dtype is DType.S8 else accumulation,
                swap_ab=swap_ab,
                stages=stages,
                arch=arch,
            )
