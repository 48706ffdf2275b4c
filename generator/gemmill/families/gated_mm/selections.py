"""The gated GEMMs of the named selections."""

from collections.abc import Iterator
from dataclasses import replace
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
    GatedProductConfig,
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
    yield from (config for config in products(arch) if config.epilogue.result.group)


def parts(arch: Arch) -> Iterator[GatedPartsConfig]:
    """Those that run their parts, for each type of dense operands and of experts' rows, and each result."""
    kinds = product((DType.E4M3, DType.S8), (False, True), RESULTS)
    for dtype, by_expert, result in kinds if arch is Arch.SM90A else ():
        operands = Operands(dtype=dtype, by_expert=by_expert)
        yield GatedPartsConfig(operands=operands, epilogue=Epilogue(result=result), arch=arch)


_PRODUCTS: tuple[tuple[_Tile, tuple[int, int, int]], ...] = (
    (((64, 16, 256), BASIC, True), (1, 1, 1)),
    (((64, 64, 128), BASIC, True), (1, 1, 1)),
    (((64, 128, 128), BASIC, False), (1, 1, 1)),
    (((128, 128, 128), COOPERATIVE, False), (2, 1, 1)),
    (((256, 128, 128), COOPERATIVE, False), (1, 1, 1)),
)
"""Tiles of products with scales in groups of 128, and their clusters: those of scaled GEMMs that make do with few."""
_FINE_PRODUCTS: tuple[tuple[_Tile, tuple[int, int, int]], ...] = (
    (((64, 16, 256), BASIC, True), (1, 1, 1)),
    (((64, 64, 128), BASIC, False), (1, 1, 1)),
    (((128, 128, 128), COOPERATIVE, False), (2, 1, 1)),
)
"""The same in groups of 32; the second has four sets of partial sums (docs/notes/cutedsl.md)."""


def products(arch: Arch) -> Iterator[GatedProductConfig]:
    """The products with scales in groups that a second launch activates, for each result."""
    kinds = ((GROUP, RESULTS, _PRODUCTS), (FINE_GROUP, _FINE_RESULTS, _FINE_PRODUCTS))
    for size, results, tiles in kinds if arch is Arch.SM90A else ():
        for result, (tile, cluster) in product(results, tiles):
            operands = Operands(dtype=DType.E4M3, group_size=size)
            epilogue = Epilogue(result=result, activation=Activation.SILU)
            design = _config(operands, epilogue, tile, arch, cluster).design
            if size == FINE_GROUP and tile in _FOURS:
                design = replace(design, partial_sets=4)
            yield GatedProductConfig(operands=operands, epilogue=Epilogue(result=result), design=design, arch=arch)


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
_IN_GROUPS = {
    Result.BF16: (((128, 16, 256), COOPERATIVE), ((128, 64, 128), COOPERATIVE), ((256, 96, 128), COOPERATIVE)),
    Result.STATIC: (((128, 16, 256), COOPERATIVE), ((128, 64, 128), COOPERATIVE), ((256, 96, 128), COOPERATIVE)),
    Result.GROUP: (((256, 16, 128), COOPERATIVE), ((256, 64, 128), COOPERATIVE), ((256, 96, 128), COOPERATIVE)),
}
"""Tiles and schedules for operands with scales in groups."""


def in_groups(arch: Arch) -> Iterator[GatedConfig]:
    """The kernels of operands whose scales are in groups along K, with SiLU and SwiGLU: layers with such weights have
    these."""
    for activation, result in product(_OFTEN, RESULTS) if arch is Arch.SM90A else ():
        for tile, schedule in _IN_GROUPS[result]:
            operands = Operands(dtype=DType.E4M3, group_size=GROUP)
            yield _config(operands, Epilogue(result=result, activation=activation), (tile, schedule, True), arch)


_FINE_RESULTS = (Result.BF16, Result.STATIC, Result.FINE_GROUP)
_FINE_BLOCKS: tuple[_Tile, ...] = (
    ((64, 16, 256), BASIC, True),
    ((64, 64, 128), BASIC, False),
    ((128, 128, 128), COOPERATIVE, False),
)
_FINE_ROWS: tuple[_Tile, ...] = (((64, 16, 256), BASIC, True), ((128, 64, 128), COOPERATIVE, True))
"""Tiles for operands in groups of 32: with blocks of 32 gates and ups, and with scales of each. Blocks as columns take one
multiply-add a sum, where swap_ab takes a product besides."""
_FOURS = (_FINE_BLOCKS[1],)
"""Those that a kernel with four sets of partial sums has, too (docs/notes/cutedsl.md)."""


def in_fine_groups(arch: Arch) -> Iterator[GatedConfig]:
    """The kernels of operands in groups of 32, with SiLU and SwiGLU: dense ones, and those of experts' rows in order and
    gathered."""
    kinds = ((False, _FINE_BLOCKS), (True, _FINE_ROWS))
    ways = ((False, False), (True, False), (True, True))
    for activation, result, (rows_scaled, tiles), (by_expert, indexed) in (
        product(_OFTEN, _FINE_RESULTS, kinds, ways) if arch is Arch.SM90A else ()
    ):
        for tile in tiles[: 2 if indexed else None]:
            operands = Operands(
                dtype=DType.E4M3,
                group_size=FINE_GROUP,
                rows_scaled=rows_scaled,
                by_expert=by_expert,
                indexed=indexed,
            )
            config = _config(operands, Epilogue(result=result, activation=activation), tile, arch)
            yield config
            if tile in _FOURS and activation is Activation.SILU and not by_expert and not rows_scaled:
                yield replace(config, design=replace(config.design, partial_sets=4))


_OF_EXPERTS = {
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
_OF_EXPERTS_IN_GROUPS = {
    Result.BF16: ((128, 16, 256), (128, 64, 128), (256, 96, 128)),
    Result.STATIC: ((128, 16, 256), (128, 64, 128), (256, 96, 128)),
    Result.GROUP: ((256, 16, 128), (256, 64, 128), (256, 96, 128)),
}
"""Tiles, schedules, and whether weights fill the tensor core's rows: those of dense kernels, without pairs along M."""
_GATHERED_ROWS = (16, 64)
"""Rows of the tiles that kernels of gathered rows have: `gemmill.grouped_mm_act_quant` selects many rows first."""


_OFTEN = (Activation.SILU, Activation.SWIGLU)
"""Activations that experts mostly have. Others have kernels of scales of rows alone, for a small and for a large M in
order.
"""
_LEFT_OUT_ROWS = 32
"""Rows of a tile that `default` has for dense layers alone: those with 16 and 64 serve experts."""


def of_experts(arch: Arch) -> Iterator[GatedConfig]:
    """The kernels of e4m3 whose rows belong to experts, with both kinds of scales, in order and gathered."""
    for activation, result, indexed in product(Activation, RESULTS, (False, True)) if arch is Arch.SM90A else ():
        tiles: list[tuple[int, _Tile]] = [(0, tile) for tile in _OF_EXPERTS[result]]
        if activation in _OFTEN:
            tiles += [(GROUP, (tile, COOPERATIVE, True)) for tile in _OF_EXPERTS_IN_GROUPS[result]]
        else:
            tiles = [] if indexed else [tiles[0], tiles[-1]]
        for group, tile in tiles:
            if not indexed or tile[0][1] in _GATHERED_ROWS:
                operands = Operands(dtype=DType.E4M3, group_size=group, by_expert=True, indexed=indexed)
                yield _config(operands, Epilogue(result=result, activation=activation), tile, arch)


def served_experts(arch: Arch) -> Iterator[GatedConfig]:
    """Those kernels of experts' rows that `default` has: scales of rows, to bf16 and to codes in groups.

    With scales of operands in groups the two ops are faster from 256 tokens on (docs/notes/gated_mm.md).
    """
    for config in of_experts(arch):
        epilogue = config.epilogue
        of_default = epilogue.activation in _OFTEN and epilogue.result is not Result.STATIC and not config.group_size
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
    """The default kernels, those of operands in groups, all of experts' rows, and those of s8."""
    yield from default(arch)
    yield from in_groups(arch)
    yield from in_fine_groups(arch)
    yield from (config for config in products(arch) if not config.epilogue.result.group)
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
