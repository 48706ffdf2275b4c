"""The kernels of the named selections."""

from collections.abc import Iterator
from itertools import product

from gemmill.families.moe.biased_selections import biased, kept
from gemmill.families.moe.config import (
    FP4_PAIRS,
    GROUP,
    OPERANDS,
    AnyConfig,
    GroupedConfig,
    PackedGroupedConfig,
    UnalignedGroupedConfig,
)
from gemmill.gemm.config import RESULTS_OF
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
"""Tile of 8-bit operands, cluster, schedule, whether weights fill the tensor core's rows, stages: with scales per token and
channel."""
_GROUP = (
    ((64, 16, 256), (1, 1, 1), BASIC, True, 4),
    ((128, 32, 256), (1, 1, 1), COOPERATIVE, True, None),
    ((64, 128, 128), (1, 1, 1), BASIC, False, None),
    ((128, 128, 128), (1, 1, 1), COOPERATIVE, False, None),
    ((128, 128, 128), (1, 2, 1), COOPERATIVE, False, None),
)
"""The same for scales in groups: the fastest of 27 kernels at 30 points, or nearly so (docs/notes/moe.md)."""
_INDEXED = (
    ((64, 16, 256), (1, 1, 1), BASIC, True, None),
    ((128, 32, 256), (1, 1, 1), COOPERATIVE, True, None),
    ((128, 64, 128), (1, 1, 1), COOPERATIVE, True, None),
    ((128, 128, 128), (1, 1, 1), PINGPONG, True, None),
)
_GROUP_INDEXED = (
    ((64, 16, 256), (1, 1, 1), BASIC, True, 4),
    ((128, 32, 256), (1, 1, 1), COOPERATIVE, True, None),
    ((128, 128, 128), (1, 1, 1), COOPERATIVE, False, None),
)
"""The same for gathered rows and scales in groups. Threads that copy rows take registers that sums of wide tiles have."""


_KINDS = [(dtype, group) for dtype in OPERANDS for group in ((0, GROUP) if dtype is DType.E4M3 else (0,))]


def default(arch: Arch) -> Iterator[AnyConfig]:
    """The default selection, on sm90a: e4m3 with both kinds of scales, s8, operands of 16 bits, packed 4-bit weights, and kernels with
    alpha and bias.

    Kernels have tiles for few and for many rows. All but those of packed weights have one beside them that takes operands as
    TMA does not.
    """
    yield from tiled(arch)
    yield from unaligned(arch)
    yield from packed(arch)
    yield from kept(arch)


def sweep(arch: Arch) -> Iterator[AnyConfig]:
    """The default selection, and the kernels with alpha and bias that it has not."""
    found = list(default(arch))
    yield from found
    yield from (config for config in biased(arch) if config not in found)


_PACKED = {
    DType.BF16: ((8, 64, 7), (16, 64, 5), (32, 128, 5), (64, 128, 4), (128, 128, 5)),
    DType.E4M3: ((16, 128, 9), (32, 128, 7), (64, 128, 5), (128, 128, 7)),
}
"""Rows of A and of weights in a tile, and stages. Two CTAs fit on a multiprocessor; of the largest tile one does."""


def packed(arch: Arch) -> Iterator[PackedGroupedConfig]:
    """Kernels of packed 4-bit weights."""
    for dtype, format in FP4_PAIRS if arch is Arch.SM90A else ():
        for tile_m, tile_n, stages in _PACKED[dtype]:
            yield PackedGroupedConfig(
                dtype=dtype, format=format, tile_m=tile_m, tile_n=tile_n, stages=stages, arch=arch
            )


def unaligned(arch: Arch) -> Iterator[UnalignedGroupedConfig]:
    """Kernels that take operands as TMA does not, one for each dtype, kind of scales and result."""
    for dtype, group in _KINDS if arch is Arch.SM90A else ():
        for out in RESULTS_OF[dtype]:
            yield UnalignedGroupedConfig(dtype=dtype, out_dtype=out, group_size=group, arch=arch)


def tiled(arch: Arch) -> Iterator[GroupedConfig]:
    """Kernels that load with TMA, for rows in order and gathered."""
    for dtype, group in _KINDS if arch is Arch.SM90A else ():
        for out, indexed in product(RESULTS_OF[dtype], (False, True)):
            shapes = (_GROUP, _GROUP_INDEXED)[indexed] if group else (_CHANNEL, _INDEXED)[indexed]
            for (x, y, k), cluster, schedule, swap_ab, stages in shapes:
                yield GroupedConfig(
                    dtype=dtype,
                    out_dtype=out,
                    group_size=group,
                    indexed=indexed,
                    tile_shape_mnk=(x, y, k * 8 // dtype.bits),
                    cluster_shape_mnk=cluster,
                    kernel_schedule=schedule,
                    accumulation=_accumulation(dtype, group),
                    swap_ab=swap_ab,
                    stages=stages,
                    arch=arch,
                )


def _accumulation(dtype: DType, group: int) -> Accumulation:
    if dtype is DType.S8:
        return Accumulation.EXACT
    return Accumulation.PROMOTED if group else Accumulation.FAST


_SMOKE = (((64, 16, 256), True), ((128, 192, 128), False), ((64, 128, 128), False))
_FEW = {DType.E4M3: _SMOKE[0], DType.BF16: ((64, 16, 128), True)}


def smoke(arch: Arch) -> Iterator[AnyConfig]:
    """The smoke selection.

    For e4m3 to bf16, with both kinds of scales, it has a tile for few rows and one for many. For bf16, for gathered rows and
    for packed weights it has a tile for few rows. For e4m3 in groups it also has the kernel that takes operands as TMA does
    not.
    """
    yield from (config for config in packed(arch) if config.tile_m == 16 and config.dtype is not DType.E4M3)
    yield from (config for config in unaligned(arch) if config.out_dtype is DType.BF16 and config.group_size)
    for config in tiled(arch):
        shape, few = (config.tile_shape_mnk, config.swap_ab), _FEW.get(config.dtype)
        if config.out_dtype is DType.BF16 and (
            shape == few or (few == _SMOKE[0] and not config.indexed and shape in _SMOKE)
        ):
            yield config
