"""The kernels of the named selections."""

from collections.abc import Iterator, Sequence
from itertools import product

from gemmill.families.grouped_mm.config import (
    FP4_PAIRS,
    OPERANDS,
    SCALE_GROUPS,
    AnyConfig,
    Epilogue,
    GroupedConfig,
    Operands,
    PackedGroupedConfig,
    UnalignedGroupedConfig,
)
from gemmill.gemm.config import RESULTS_OF, Design
from gemmill.vocab import Accumulation, Arch, DType, KernelSchedule, ScaleGranularity, ScaleGroups

BASIC, COOPERATIVE, PINGPONG = KernelSchedule.BASIC, KernelSchedule.COOPERATIVE, KernelSchedule.PINGPONG
_Tiles = Sequence[tuple[tuple[int, int, int], tuple[int, int, int], KernelSchedule, bool, int | None]]
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
"""The same for scales in groups: the fastest of 27 kernels at 30 points, or nearly so (docs/notes/grouped_mm.md)."""
_GROUP_32 = (
    ((64, 16, 256), (1, 1, 1), BASIC, True, 4),
    ((64, 32, 256), (1, 1, 1), BASIC, True, None),
    ((64, 64, 128), (1, 1, 1), BASIC, True, None),
    ((64, 128, 128), (1, 1, 1), BASIC, False, None),
    ((128, 128, 128), (1, 1, 1), COOPERATIVE, False, None),
    ((128, 128, 128), (1, 2, 1), COOPERATIVE, False, None),
)
"""The same for groups of 32, each of one WGMMA along K. They are those of scaled GEMMs, and not measured yet."""
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
_GROUP_32_INDEXED = (_GROUP_32[0], _GROUP_32[2], _GROUP_32[4])
_FEW_OF_32 = (_GROUP_32[0], _GROUP_32[3])
"""Of groups of 32 those of float16 results."""
_ROWS_OF_32 = (_GROUP_32[0], ((64, 96, 128), (1, 1, 1), BASIC, False, None))
"""Those of weights whose rows have scales of their own, for which 96 columns leave registers of a second set of sums."""


_PLAIN, _WITH_BIAS = Epilogue(), Epilogue(biased=True)
_BIASED = (_CHANNEL[0], _CHANNEL[3], _CHANNEL[6])
_BIASED_GROUP = (_GROUP[0], _GROUP[2], _GROUP[3])
"""Those of kernels with alpha and bias, for a small, a medium and a large M."""
_KEPT = ((64, 16), (128, 192), (128, 128))
"""Tiles with alpha and bias that `default` has."""
_FINE = 32
"""Elements of the groups that have tiles of their own."""
_KINDS = [
    (dtype, groups) for dtype in OPERANDS for groups in ((None, *SCALE_GROUPS) if dtype is DType.E4M3 else (None,))
]


def default(arch: Arch) -> Iterator[AnyConfig]:
    """The default selection, on sm90a: e4m3 with all kinds of scales, s8, operands of 16 bits, packed 4-bit weights, and kernels with
    alpha and bias. On sm120f it has the kernels of these that multiply without WGMMA.

    Kernels have tiles for a small and for a large M. All but those of packed weights also have one for operands that
    TMA does not take.
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
    (Arch.SM90A, DType.BF16): ((8, 64, 7), (16, 64, 5), (32, 128, 5), (64, 128, 4), (128, 128, 5)),
    (Arch.SM90A, DType.E4M3): ((16, 128, 9), (32, 128, 7), (64, 128, 5), (128, 128, 7)),
    (Arch.SM120F, DType.BF16): ((8, 64, 6), (16, 64, 4)),
}
"""Rows of A and of weights in a tile, and stages. On sm90a two CTAs fit on a multiprocessor; of the largest tile one does."""


def packed(arch: Arch) -> Iterator[PackedGroupedConfig]:
    """Kernels of packed 4-bit weights; on sm120f those by warps."""
    for dtype, format in FP4_PAIRS:
        for tile_m, tile_n, stages in _PACKED.get((arch, dtype), ()):
            yield PackedGroupedConfig(
                dtype=dtype, format=format, tile_m=tile_m, tile_n=tile_n, stages=stages, arch=arch
            )


def unaligned(arch: Arch, epilogue: Epilogue = _PLAIN) -> Iterator[UnalignedGroupedConfig]:
    """Kernels that take operands as TMA does not, one for each dtype, kind of scales and result."""
    for dtype, groups in _KINDS if arch is not Arch.SM100A else ():
        for out in RESULTS_OF[dtype]:
            operands = _operands(dtype, out, groups)
            yield UnalignedGroupedConfig(operands=operands, epilogue=epilogue, arch=arch)


def tiled(arch: Arch) -> Iterator[GroupedConfig]:
    """Kernels that load with TMA, for rows in order and gathered."""
    for operands in _tiled_operands(arch):
        tiles: _Tiles = (_CHANNEL, _GROUP, _INDEXED, _GROUP_INDEXED)[_kind(operands)]
        if operands.group_size == _FINE:
            tiles = _of_32(operands)
        yield from _with_tiles(operands, _PLAIN, tiles, arch)


def _of_32(operands: Operands) -> _Tiles:
    if operands.rows_scaled:
        return _ROWS_OF_32
    if operands.out_dtype is DType.F16:
        return _FEW_OF_32
    return _GROUP_32_INDEXED if operands.indexed else _GROUP_32


def biased(arch: Arch) -> Iterator[AnyConfig]:
    """Kernels with alpha and bias: three tiles, two for gathered rows, and those that take operands as TMA does not.

    Groups of 32 have the latter alone: no model with such weights has biases.
    """
    yield from unaligned(arch, _WITH_BIAS)
    gathered = _BIASED[:2], (_BIASED_GROUP[0], _BIASED_GROUP[2])
    for operands in _tiled_operands(arch):
        if operands.group_size != _FINE:
            yield from _with_tiles(operands, _WITH_BIAS, (_BIASED, _BIASED_GROUP, *gathered)[_kind(operands)], arch)


def kept(arch: Arch) -> Iterator[AnyConfig]:
    """Those of the default selection: tiles for a small and for a large M in order, to bf16, and all that take any
    operands.
    """
    for config in biased(arch):
        in_order = config.out_dtype is DType.BF16 and False in config.gathers
        if not isinstance(config, GroupedConfig) or (in_order and config.design.tile_shape_mnk[:2] in _KEPT):
            yield config


def _tiled_operands(arch: Arch) -> Iterator[Operands]:
    for dtype, groups in _KINDS if arch is Arch.SM90A else ():
        for out, indexed in product(RESULTS_OF[dtype], (False, True)):
            yield _operands(dtype, out, groups, indexed=indexed)


def _operands(dtype: DType, out: DType, groups: ScaleGroups | None, *, indexed: bool = False) -> Operands:
    size, rows = (0, False) if groups is None else (groups.size, groups.b_scale is ScaleGranularity.GROUP)
    return Operands(dtype=dtype, out_dtype=out, group_size=size, rows_scaled=rows, indexed=indexed)


def _kind(operands: Operands) -> int:
    """A place in tables: of scales of channels and of groups, then of both with gathered rows."""
    return 2 * operands.indexed + bool(operands.group_size)


def _with_tiles(operands: Operands, epilogue: Epilogue, tiles: _Tiles, arch: Arch) -> Iterator[GroupedConfig]:
    dtype, group = operands.dtype, operands.group_size
    for (x, y, k), cluster, schedule, swap_ab, stages in tiles:
        design = Design(
            tile_shape_mnk=(x, y, k * 8 // dtype.bits),
            cluster_shape_mnk=cluster,
            kernel_schedule=schedule,
            accumulation=_accumulation(dtype, group),
            swap_ab=swap_ab,
            stages=stages,
        )
        yield GroupedConfig(operands=operands, design=design, epilogue=epilogue, arch=arch)


def _accumulation(dtype: DType, group: int) -> Accumulation:
    if dtype is DType.S8:
        return Accumulation.EXACT
    return Accumulation.PROMOTED if group else Accumulation.FAST


_SMOKE = (((64, 16, 256), True), ((128, 192, 128), False), ((64, 128, 128), False))
_FEW = {DType.E4M3: _SMOKE[0], DType.BF16: ((64, 16, 128), True)}


def smoke(arch: Arch) -> Iterator[AnyConfig]:
    """The smoke selection.

    For e4m3 to bf16, with both kinds of scales, it has a tile for a small M and one for a large M; for bf16, for
    gathered rows and for packed weights one for a small M. For e4m3 in groups it also has the kernel that takes
    operands as TMA does not.
    """
    yield from (config for config in packed(arch) if config.tile_m == 16 and config.dtype is not DType.E4M3)
    yield from (
        config
        for config in unaligned(arch)
        if config.out_dtype is DType.BF16 and config.group_size == SCALE_GROUPS[0].size
    )
    for config in tiled(arch):
        shape = config.design.tile_shape_mnk, config.design.swap_ab
        few = _FEW.get(config.operands.dtype)
        if (
            config.out_dtype is DType.BF16
            and config.group_size != _FINE
            and (shape == few or (few == _SMOKE[0] and not config.operands.indexed and shape in _SMOKE))
        ):
            yield config
