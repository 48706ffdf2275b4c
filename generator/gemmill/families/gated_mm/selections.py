"""The gated GEMMs of the named selections."""

from collections.abc import Iterator
from itertools import product

from gemmill.families.gated_mm.classes import RESULTS
from gemmill.families.gated_mm.config import (
    FINE_GROUP,
    GROUP,
    Activation,
    AnyConfig,
    Epilogue,
    GatedConfig,
    GatedPartsConfig,
    Operands,
    Result,
    UnalignedGatedConfig,
)
from gemmill.gemm.config import Design
from gemmill.vocab import Accumulation, Arch, DType, KernelSchedule

_Tile = tuple[tuple[int, int, int], KernelSchedule, bool]
"""A tile, its schedule, and whether weights fill the tensor core's rows."""
BASIC, COOPERATIVE, PINGPONG = KernelSchedule.BASIC, KernelSchedule.COOPERATIVE, KernelSchedule.PINGPONG
_FEW = {
    Result.BF16: (((64, 16, 256), BASIC), ((128, 32, 256), COOPERATIVE)),
    Result.STATIC: (((64, 16, 256), BASIC), ((128, 32, 256), COOPERATIVE)),
    Result.GROUP: (((256, 16, 128), COOPERATIVE), ((256, 32, 128), COOPERATIVE)),
}
_SOME = ((256, 64, 128), COOPERATIVE)
_LOW = ((64, 256, 128), BASIC)
_MANY = {
    Result.BF16: ((128, 192, 128), (1, 1, 1)),
    Result.STATIC: ((128, 192, 128), (1, 1, 1)),
    Result.GROUP: ((64, 256, 128), (2, 1, 1)),
}
"""Tiles in pingpong: a tile ends while the tensor core multiplies the next one (docs/notes/gated_mm.md)."""


def default(arch: Arch) -> Iterator[AnyConfig]:
    """The default kernels, on sm90a: for each result and activation, tiles for a small, a medium and a large M.

    For each result one more kernel takes operands that TMA does not; sm120f has these alone. Rows of experts have kernels for few, some and many of
    them (`served_experts`). A few are of s8 (`served_int8`).
    """
    yield from tiled(arch)
    yield from unaligned(arch)
    yield from served_experts(arch)
    yield from served_int8(arch)
    yield from parts(arch)


_FINE_RESULTS = (Result.BF16, Result.STATIC, Result.FINE_GROUP)


def parts(arch: Arch) -> Iterator[GatedPartsConfig]:
    """Those that run their parts: of each type of dense operands and of experts' rows, with each kind of scales that a plain GEMM
    has, to each result."""
    of_blocks = ((DType.E4M3, group, False) for group in (GROUP, FINE_GROUP))
    scales = ((DType.E4M3, 0, False), (DType.S8, 0, False), *of_blocks, (DType.E4M3, FINE_GROUP, True))
    for (dtype, group, rows_scaled), by_expert in product(scales, (False, True)) if arch is Arch.SM90A else ():
        if by_expert and rows_scaled:
            continue  # no grouped GEMM of packed columns has such scales
        operands = Operands(dtype=dtype, group_size=group, rows_scaled=rows_scaled, by_expert=by_expert)
        for result in _FINE_RESULTS if group == FINE_GROUP else RESULTS:
            yield GatedPartsConfig(operands=operands, epilogue=Epilogue(result=result), arch=arch)


def unaligned(arch: Arch) -> Iterator[UnalignedGatedConfig]:
    """The kernels for operands that TMA does not take, one for each type and result."""
    for dtype, result in product((DType.E4M3, DType.S8), RESULTS) if arch is not Arch.SM100A else ():
        yield UnalignedGatedConfig(operands=Operands(dtype=dtype), epilogue=Epilogue(result=result), arch=arch)


def tiled(arch: Arch) -> Iterator[GatedConfig]:
    """The kernels of e4m3 that load with TMA. GELU with erf has two of each result alone."""
    for activation, result in product(Activation, RESULTS) if arch is Arch.SM90A else ():
        rare, epilogue = activation is Activation.GELU, Epilogue(result=result, activation=activation)
        for tile, schedule in (*_FEW[result][: 1 if rare else 2], *(() if rare else (_SOME,))):
            yield _config(_DENSE, epilogue, (tile, schedule, True), arch)
        if not rare:
            yield _config(_DENSE, epilogue, (*_LOW, False), arch)
        tile, cluster = _MANY[result]
        yield _config(_DENSE, epilogue, (tile, PINGPONG, False), arch, cluster)


_DENSE = Operands(dtype=DType.E4M3)
_FINE_ROWS: tuple[_Tile, ...] = (((64, 16, 256), BASIC, True), ((128, 64, 128), COOPERATIVE, True))
"""Tiles for operands in groups of 32 whose gates and ups have scales of their own."""


def in_fine_groups(arch: Arch) -> Iterator[GatedConfig]:
    """The kernels of operands in groups of 32 whose gates and ups have scales of their own, with SiLU and SwiGLU: dense ones, and
    those of experts' rows in order and gathered."""
    ways = ((False, False), (True, False), (True, True))
    for activation, result, (by_expert, indexed), tile in (
        product(_OFTEN, _FINE_RESULTS, ways, _FINE_ROWS) if arch is Arch.SM90A else ()
    ):
        operands = Operands(
            dtype=DType.E4M3, group_size=FINE_GROUP, rows_scaled=True, by_expert=by_expert, indexed=indexed
        )
        yield _config(operands, Epilogue(result=result, activation=activation), tile, arch)


_OF_EXPERTS: dict[Result, tuple[_Tile, ...]] = {
    Result.BF16: (
        ((64, 16, 256), BASIC, True),
        ((128, 32, 256), COOPERATIVE, True),
        ((128, 64, 128), COOPERATIVE, True),
        ((128, 192, 128), PINGPONG, False),
    ),
    Result.STATIC: (
        ((64, 16, 256), BASIC, True),
        ((128, 64, 128), COOPERATIVE, True),
        ((128, 192, 128), PINGPONG, False),
    ),
    Result.GROUP: (
        ((256, 16, 128), COOPERATIVE, True),
        ((256, 32, 128), COOPERATIVE, True),
        ((256, 64, 128), COOPERATIVE, True),
        ((64, 256, 128), PINGPONG, False),
    ),
}
_GATHERED_ROWS = (16, 64)
"""Rows of the tiles that kernels of gathered rows have: `gemmill.grouped_mm_act_quant` selects many rows first."""


_OFTEN = (Activation.SILU, Activation.SWIGLU)
"""Activations that experts mostly have. Others have kernels of scales of rows alone, for a small and for a large M in
order.
"""
_LEFT_OUT_ROWS = 32
"""Rows of a tile that `default` has for dense layers alone: those with 16 and 64 serve experts."""


def of_experts(arch: Arch) -> Iterator[GatedConfig]:
    """The kernels of e4m3 whose rows belong to experts, in order and gathered."""
    for activation, result, indexed in product(Activation, RESULTS, (False, True)) if arch is Arch.SM90A else ():
        tiles = _OF_EXPERTS[result]
        if activation not in _OFTEN:
            tiles = () if indexed else (tiles[0], tiles[-1])
        for tile in tiles:
            if not indexed or tile[0][1] in _GATHERED_ROWS:
                operands = Operands(dtype=DType.E4M3, by_expert=True, indexed=indexed)
                yield _config(operands, Epilogue(result=result, activation=activation), tile, arch)


def served_experts(arch: Arch) -> Iterator[GatedConfig]:
    """Those kernels of experts' rows that `default` has: to bf16 and to codes in groups."""
    for config in of_experts(arch):
        epilogue = config.epilogue
        of_default = epilogue.activation in _OFTEN and epilogue.result is not Result.STATIC
        if of_default and config.design.tile_shape_mnk[1] != _LEFT_OUT_ROWS:
            yield config


_NUMBERS: tuple[_Tile, ...] = (
    ((64, 16, 256), BASIC, True),
    ((128, 64, 128), COOPERATIVE, True),
    ((128, 192, 128), PINGPONG, False),
)
_OF_INT8: dict[Result, tuple[_Tile, ...]] = {
    Result.BF16: _NUMBERS,
    Result.STATIC: _NUMBERS,
    Result.GROUP: (
        ((256, 16, 128), COOPERATIVE, True),
        ((256, 64, 128), COOPERATIVE, True),
        ((64, 256, 128), PINGPONG, False),
    ),
}
"""Tiles for a small, a medium and a large M: those of e4m3."""
_SERVED_INT8 = {(Result.BF16, 16), (Result.GROUP, 16), (Result.GROUP, 256)}
"""Results, and columns of the tiles for SiLU, that `default` has of s8: its extension has room for three."""


def of_int8(arch: Arch) -> Iterator[GatedConfig]:
    """The kernels of s8 that load with TMA: dense ones, and those of experts' rows in order and gathered. Gathered rows have
    tiles for few and some of them."""
    ways = ((False, False), (True, False), (True, True))
    for activation, result, (by_expert, indexed) in product(_OFTEN, RESULTS, ways) if arch is Arch.SM90A else ():
        operands = Operands(dtype=DType.S8, by_expert=by_expert, indexed=indexed)
        for tile in _OF_INT8[result][: 2 if indexed else 3]:
            yield _config(operands, Epilogue(result=result, activation=activation), tile, arch)


def served_int8(arch: Arch) -> Iterator[GatedConfig]:
    """Those of `default`, for dense layers: few tiles of SiLU."""
    for config in of_int8(arch):
        kept = (config.epilogue.result, config.design.tile_shape_mnk[1]) in _SERVED_INT8
        if kept and not config.operands.by_expert and config.epilogue.activation is Activation.SILU:
            yield config


def sweep(arch: Arch) -> Iterator[AnyConfig]:
    """The default kernels, those of operands in groups whose weights' rows have scales, all of experts' rows, and those of s8."""
    yield from default(arch)
    yield from in_fine_groups(arch)
    served = {*served_experts(arch), *served_int8(arch)}
    yield from (config for config in (*of_experts(arch), *of_int8(arch)) if config not in served)


def smoke(arch: Arch) -> Iterator[AnyConfig]:
    """Kernels of SiLU that store codes in groups for a small and a large M, and bf16 for a small one.

    One more stores codes in groups of operands that TMA does not take.
    """
    of_groups = Epilogue(result=Result.GROUP)
    yield from (x for x in unaligned(arch) if x.epilogue == of_groups and x.operands.dtype is DType.E4M3)
    for config in tiled(arch):
        few, many = config.design.tile_shape_mnk[1] == 16, config.design.kernel_schedule is PINGPONG
        result, activation = config.epilogue.result, config.epilogue.activation
        if activation is Activation.SILU and (few or (many and result is Result.GROUP)) and result is not Result.STATIC:
            yield config


def _config(
    operands: Operands, epilogue: Epilogue, tile: _Tile, arch: Arch, cluster: tuple[int, int, int] = (1, 1, 1)
) -> GatedConfig:
    shape, schedule, swap_ab = tile
    fast = Accumulation.EXACT if operands.dtype is DType.S8 else Accumulation.FAST
    design = Design(
        tile_shape_mnk=shape,
        cluster_shape_mnk=cluster,
        kernel_schedule=schedule,
        accumulation=Accumulation.PROMOTED if operands.group_size else fast,
        swap_ab=swap_ab,
    )
    return GatedConfig(operands=operands, design=design, epilogue=epilogue, arch=arch)
