"""The kernels of the named selections."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from gemmill.families.blockscaled.config import (
    WEIGHT_PAIRS,
    AnyConfig,
    FewConfig,
    Group,
    ManyConfig,
    Pair,
    PairConfig,
    Sharing,
    WeightConfig,
    WidenedConfig,
)
from gemmill.formats.layout import SIDE
from gemmill.vocab import Arch, DType
from gemmill.vocab.format import MXFP8

WARP_TILES = (
    (64, 1, 8, 4, 1, 5),
    (64, 2, 8, 4, 1, 5),
    (64, 4, 8, 2, 1, 5),
    (32, 2, 8, 4, 1, 8),
    (32, 4, 8, 4, 1, 9),
    (64, 1, 16, 4, 1, 5),
    (64, 2, 16, 4, 1, 4),
    (32, 2, 16, 4, 1, 6),
    (32, 4, 16, 4, 1, 8),
    (32, 2, 32, 4, 1, 4),
    (32, 4, 32, 4, 1, 6),
)
"""Of groups that are warps: rows of weights of each, how many there are on different ones, rows of A, groups along K, blocks of
each, stages."""
TILES = (
    (32, 1, 2, 6),
    (32, 2, 2, 5),
    (64, 1, 2, 4),
    (64, 2, 2, 4),
    (96, 1, 2, 5),
    (128, 1, 2, 5),
    (192, 1, 2, 3),
    (256, 1, 2, 3),
)
"""Rows of A, groups along K, blocks of each, stages. Two groups of 96 rows and more, and wider stages of few rows, leave too few
registers: the tensor core's products would be serialised (docs/notes/fp4_weights.md, which has the times of others too)."""
SPLITS = (1, 2, 4, 8)


def _all(arch: Arch) -> Iterator[WeightConfig]:
    if arch is not Arch.SM90A:
        return
    tiles = [(Group.WARP, *tile) for tile in WARP_TILES] + [(Group.WARPGROUP, 64, 2, *tile) for tile in TILES]
    for pair, (group, rows, row_groups, tile_m, k_groups, blocks, stages) in product(WEIGHT_PAIRS, tiles):
        yield WeightConfig(
            pair=pair,
            group=group,
            rows=rows,
            row_groups=row_groups,
            tile_m=tile_m,
            k_groups=k_groups,
            blocks=blocks,
            stages=stages,
        )


def default(arch: Arch) -> Iterator[AnyConfig]:
    """On Hopper every tile of both formats, with K in one to four slices; on Blackwell all pairs of codes."""
    for config, splits in product(_all(arch), SPLITS):
        yield replace(config, splits=splits)
    yield from _widened(arch)
    for few, splits in product(_few(arch), SPLITS):
        yield replace(few, splits=splits)
    for many, splits in product(_many(arch), SPLITS):
        if splits == 1 or many.tile_m == SIDE:
            yield replace(many, splits=splits)
    for pair in Pair:
        if pair not in WEIGHT_PAIRS:
            yield from _pairs(pair, arch)


def _widened(arch: Arch) -> Iterator[WidenedConfig]:
    """All pairs, in tiles for few rows and for many."""
    if arch is not Arch.SM90A:
        return
    for pair, out_dtype, tile in product(Pair, (DType.BF16, DType.F16), (64, 128)):
        if pair not in WEIGHT_PAIRS or out_dtype is DType.BF16:
            yield WidenedConfig(pair=pair, out_dtype=out_dtype, tile=tile)


FEW_TILES = ((8, 4), (16, 4))
"""Rows of A, warps."""


def _few(arch: Arch) -> Iterator[FewConfig]:
    """Of 4-bit codes, both operands."""
    if arch is not Arch.SM90A:
        return
    for pair, out_dtype, (tile_m, warps) in product((Pair.NVFP4, Pair.MXFP4), (DType.BF16, DType.F16), FEW_TILES):
        yield FewConfig(pair=pair, out_dtype=out_dtype, tile_m=tile_m, warps=warps)


MANY_TILES = ((64, 128), (64, 256), (128, 128), (128, 256))
"""Rows of A and of B. Those of 128 rows of A have no room for sums of slices of K."""


def _many(arch: Arch) -> Iterator[ManyConfig]:
    """The same for more rows."""
    if arch is not Arch.SM90A:
        return
    for pair, out_dtype, (tile_m, tile_n) in product((Pair.NVFP4, Pair.MXFP4), (DType.BF16, DType.F16), MANY_TILES):
        yield ManyConfig(pair=pair, out_dtype=out_dtype, tile_m=tile_m, tile_n=tile_n)


_SM100_N = (64, 128, 256)
_SM100_CLUSTERS = {Sharing.ONE_SM: ((1, 1, 1), (2, 1, 1)), Sharing.TWO_SM: ((2, 1, 1), (4, 1, 1))}
_SM120_TILE = (128, 128)
"""Of twice the size some kernels spilled (nvcc 13.0), and of mixed codes there is no room for two stages of it."""


def _pairs(pair: Pair, arch: Arch) -> Iterator[PairConfig]:
    """Results in bf16 of every tile, in f16 of one for each way of sharing."""
    k = 128 if arch is Arch.SM120A or pair.a_format is MXFP8 else 256
    if arch is Arch.SM100A:
        for sharing, n, cluster in product(_SM100_CLUSTERS, _SM100_N, (0, 1)):
            config = PairConfig(
                pair=pair,
                out_dtype=DType.BF16,
                tile_shape_mnk=(256 if sharing is Sharing.TWO_SM else 128, n, k),
                cluster_shape_mnk=_SM100_CLUSTERS[sharing][cluster],
                sharing=sharing,
                arch=arch,
            )
            yield config
            if (n, cluster) == (128, 0):
                yield replace(config, out_dtype=DType.F16)
    if arch is Arch.SM120A:
        for sharing, out_dtype in product((Sharing.COOPERATIVE, Sharing.PINGPONG), (DType.BF16, DType.F16)):
            yield PairConfig(
                pair=pair,
                out_dtype=out_dtype,
                tile_shape_mnk=(*_SM120_TILE, k),
                cluster_shape_mnk=(1, 1, 1),
                sharing=sharing,
                arch=arch,
            )


def smoke(arch: Arch) -> Iterator[AnyConfig]:
    """Of each format of packed weights a tile for warps and one for groups of 128 threads, and of every pair one."""
    yield from (
        config
        for config in _all(arch)
        if (config.tile_m, config.k_groups) in ((16, 4), (32, 2)) and (config.rows, config.row_groups) == (64, 2)
    )
    yield from (config for config in _few(arch) if (config.out_dtype, config.tile_m) == (DType.BF16, 16))
    yield from (config for config in _widened(arch) if (config.out_dtype, config.tile) == (DType.BF16, 64))
