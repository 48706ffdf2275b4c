"""The kernels of the named selections."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from gemmill.families.blockscaled.config import (
    NARROW,
    AnyConfig,
    FewConfig,
    FoldedConfig,
    Group,
    ManyConfig,
    PairConfig,
    Sharing,
    TmaFewConfig,
    WeightConfig,
    WidenedConfig,
)
from gemmill.families.blockscaled.pairs import (
    CODE_PAIRS,
    FP4_PAIRS,
    WEIGHT_PAIRS,
    WORD_PAIRS,
    Pair,
)
from gemmill.formats.layout import SIDE
from gemmill.vocab import Arch, DType
from gemmill.vocab.format import MXFP8

WARP_TILES = (
    (1, 8, 4, 1, 5),
    (1, 8, 4, 1, 8),
    (1, 8, 8, 1, 8),
    (2, 8, 4, 1, 5),
    (4, 8, 4, 1, 5),
    (1, 16, 4, 1, 5),
    (1, 16, 8, 1, 6),
    (2, 16, 4, 1, 4),
)
"""Tiles of groups that are warps: groups on different rows of weights, rows of A, groups along K, blocks of each, stages.

Eight groups along K take stages in turns: so a CTA has a multiprocessor's warps, and needs no cluster.
"""
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
"""Tiles of groups of 128 threads: rows of A, groups along K, blocks of each, stages.

Two groups of 96 rows and more leave too few registers, as do wider stages of few rows. The tensor core's products would be
serialised. docs/notes/fp4_weights.md has the times of others too.
"""
SPLITS = (1, 2, 4)
WEIGHT_SPLITS = (1, 2, 3, 4, 5, 7, 8)
"""Slices of K. Clusters of 5 and of 7 fill a device where weights have 40 tiles of 128 rows, or 32."""


def _all(arch: Arch) -> Iterator[WeightConfig]:
    if arch is not Arch.SM90A:
        return
    tiles = [(Group.WARP, *tile) for tile in WARP_TILES] + [(Group.WARPGROUP, 2, *tile) for tile in TILES]
    for pair, (group, row_groups, tile_m, k_groups, blocks, stages) in product(FP4_PAIRS, tiles):
        yield WeightConfig(
            pair=pair,
            group=group,
            row_groups=row_groups,
            tile_m=tile_m,
            k_groups=k_groups,
            blocks=blocks,
            stages=stages,
        )


def default(arch: Arch) -> Iterator[AnyConfig]:
    """The default selection. On Hopper it has every tile of both formats, with K in one slice or several; on Blackwell all
    pairs of codes."""
    for config, splits in product(_all(arch), WEIGHT_SPLITS):
        yield replace(config, splits=splits)
    for folded, splits in product(_folded(arch), WEIGHT_SPLITS):
        # of clusters of 4 with a CTA on each multiprocessor 31 fit, not 33
        if splits <= 3 or folded.ctas_of_sm > 1:
            yield replace(folded, splits=splits)
    yield from _widened(arch)
    for few, splits in product(_few(arch), (*SPLITS, 8)):
        yield replace(few, splits=splits)
    for many, splits in product(_many(arch), (*SPLITS, 8)):
        if splits == 1 or many.tile_m == SIDE:
            yield replace(many, splits=splits)
    yield from _loading_ahead(arch)
    for pair in CODE_PAIRS:
        yield from _pairs(pair, arch)


FOLDED_TILES = (
    (16, 1, 1, 9),
    (16, 2, 1, 5),
    (16, 2, 1, 9),
    (32, 1, 1, 8),
    (32, 2, 1, 8),
    (64, 1, 1, 6),
    (64, 2, 1, 6),
    (128, 2, 1, 4),
    (256, 1, 1, 5),
)
"""Tiles of folded weights: rows of A, groups along K, blocks of each, stages."""
_GROUPED_WARP_TILES = ((1, 8, 4, 1, 6), (2, 8, 4, 1, 5), (1, 16, 4, 1, 6))
"""Tiles of groups that are warps, as in `WARP_TILES`. With scales of rows warps were the fastest nowhere
(docs/notes/folded.md)."""
_GROUPED_TILES = ((16, 1, 1, 9), (64, 1, 1, 6), (128, 1, 1, 6))
_F16_TILES = ((16, 1, 1, 9), (64, 1, 1, 6), (256, 1, 1, 5))


def _folded(arch: Arch) -> Iterator[FoldedConfig]:
    """Kernels of folded weights: bf16 results of every tile, nvfp4 and f16 results of some tiles."""
    if arch is not Arch.SM90A:
        return
    mxfp4, nvfp4 = Pair.E4M3_MXFP4, Pair.E4M3_NVFP4
    of_nvfp4 = (FOLDED_TILES[0], FOLDED_TILES[2], *FOLDED_TILES[4:])
    kinds = (
        (mxfp4, DType.BF16, False, (), FOLDED_TILES),
        (mxfp4, DType.BF16, True, _GROUPED_WARP_TILES, _GROUPED_TILES),
        (mxfp4, DType.F16, False, (), _F16_TILES),
        (mxfp4, DType.F16, True, _GROUPED_WARP_TILES[2:], _GROUPED_TILES[1:2]),
        (nvfp4, DType.BF16, False, (), of_nvfp4),
        (nvfp4, DType.F16, False, (), _F16_TILES[1:2]),
    )
    for pair, out_dtype, grouped, of_warps, of_groups in kinds:
        tiles = [(Group.WARP, *tile) for tile in of_warps] + [(Group.WARPGROUP, 2, *tile) for tile in of_groups]
        for group, row_groups, tile_m, k_groups, blocks, stages in tiles:
            yield FoldedConfig(
                pair=pair,
                out_dtype=out_dtype,
                group=group,
                row_groups=row_groups,
                tile_m=tile_m,
                k_groups=k_groups,
                blocks=blocks,
                stages=stages,
                grouped=grouped,
            )


def _widened(arch: Arch) -> Iterator[WidenedConfig]:
    """Kernels that widen all pairs, in tiles for few rows and for many. Weights are both a checkpoint's and those packed in
    rows."""
    if arch is not Arch.SM90A:
        return
    for pair, out_dtype, tile in product(Pair, (DType.BF16, DType.F16), (64, 128)):
        config = WidenedConfig(pair=pair, out_dtype=out_dtype, tile=tile)
        if pair is Pair.E4M3_MXFP4:
            yield from (replace(config, grouped=grouped) for grouped in (False, True) if not grouped or tile == 64)
        elif pair in CODE_PAIRS:
            yield config
        elif pair in WEIGHT_PAIRS:
            if out_dtype is DType.BF16 or pair.b_format.has_global_scale:
                yield config
            if out_dtype is DType.F16 or pair not in FP4_PAIRS:
                yield replace(config, prepacked=True)


_SM100_TILES = {
    Sharing.ONE_SM: ((64, (1, 1, 1)), (128, (1, 1, 1)), (256, (2, 1, 1))),
    Sharing.TWO_SM: ((64, (2, 1, 1)), (128, (2, 1, 1)), (256, (4, 1, 1))),
}
"""Columns of a tile, and its cluster. Wide tiles are for large results, which have whole clusters. Every further tile would
take a minute of compiling for each pair."""
FEW_TILES = ((8, 4), (8, 8), (16, 4), (16, 8))
"""Tiles for few rows: rows of A, warps."""
OTHER_FEW_TILES = ((8, 4), (16, 4))


def _few(arch: Arch) -> Iterator[FewConfig]:
    """Kernels for few rows: of 4-bit codes of both operands, then of the other pairs that `_widened` has."""
    if arch is not Arch.SM90A:
        return
    for pair, out_dtype, (tile_m, warps) in product(WORD_PAIRS, (DType.BF16, DType.F16), FEW_TILES):
        if pair is Pair.MXFP4 and (tile_m, warps) == (16, 4):
            continue  # spills 8 bytes
        yield FewConfig(pair=pair, out_dtype=out_dtype, tile_m=tile_m, warps=warps)
    others = [one for one in _widened(arch) if one.tile == SIDE and not one.grouped and one.pair not in WORD_PAIRS]
    for one, (tile_m, warps) in product(others, OTHER_FEW_TILES):
        if one.pair in (Pair.MXFP8, Pair.MXFP8_MXFP6) and tile_m > 8:
            continue  # spills 16 and 64 bytes
        yield FewConfig(pair=one.pair, out_dtype=one.out_dtype, tile_m=tile_m, warps=warps, prepacked=one.prepacked)


_RINGS = {
    Pair.NVFP4: ((8, 4, 3), (8, 8, 4), (16, 4, 2), (16, 4, 4), (16, 8, 4)),
    Pair.MXFP4: ((8, 4, 3), (8, 8, 4), (16, 8, 4)),  # four CTAs of four warps and 16 rows spill
    Pair.FLOATS_NVFP4: ((8, 4, 3), (16, 4, 2)),  # K of no multiple of 256, which TMA wants
}
"""Rows of A, warps, and stages of each warp."""


def _rings(arch: Arch) -> Iterator[FewConfig]:
    """Kernels for few rows whose warps ask for codes ahead: results in bf16, and in f16 beside packed weights."""
    if arch is not Arch.SM90A:
        return
    for pair, tiles in _RINGS.items():
        packed = pair in WEIGHT_PAIRS
        for out_dtype, (tile_m, warps, stages) in product((DType.BF16, DType.F16), tiles):
            if pair is Pair.FLOATS_NVFP4 and out_dtype is DType.BF16:
                continue  # packed weights of nvfp4 beside bf16 are blocks
            yield FewConfig(pair=pair, out_dtype=out_dtype, tile_m=tile_m, warps=warps, stages=stages, prepacked=packed)


_TMA_FEW = {
    Pair.FLOATS_NVFP4: ((8, 4, 2), (8, 8, 2), (16, 4, 3), (32, 4, 2)),
    Pair.FLOATS_MXFP4: ((8, 4, 2), (8, 8, 2), (16, 4, 3), (32, 4, 2)),
    Pair.FLOATS_MXFP6: ((8, 4, 3), (8, 8, 3), (16, 4, 2), (16, 8, 2), (32, 4, 3)),
    Pair.FLOATS_MXFP8: ((8, 4, 2), (8, 8, 2), (16, 4, 2), (16, 8, 2), (32, 4, 3)),
}
"""Rows of A, warps, and stages of each warp."""


def _tma_few(arch: Arch) -> Iterator[TmaFewConfig]:
    """Kernels of packed weights beside few rows of 16-bit numbers that TMA brings."""
    if arch is not Arch.SM90A:
        return
    for pair, tiles in _TMA_FEW.items():
        for out_dtype, (tile_m, warps, stages) in product((DType.BF16, DType.F16), tiles):
            if pair in FP4_PAIRS and out_dtype is DType.BF16:
                continue  # packed weights of 4 bits beside bf16 are blocks
            yield TmaFewConfig(pair=pair, out_dtype=out_dtype, tile_m=tile_m, warps=warps, stages=stages)


MANY_TILES = ((64, 256), (128, 256))
"""Rows of A and of B in a tile. The tile of 128 rows of A has no room for sums of slices of K."""


def _many(arch: Arch) -> Iterator[ManyConfig]:
    """Kernels of 4-bit codes of both operands for more rows."""
    if arch is not Arch.SM90A:
        return
    for pair, out_dtype, (tile_m, tile_n) in product(WORD_PAIRS, (DType.BF16, DType.F16), MANY_TILES):
        yield ManyConfig(pair=pair, out_dtype=out_dtype, tile_m=tile_m, tile_n=tile_n)


AHEAD_TILES = ((64, 128, 3), (64, 256, 2), (128, 128, 3), (128, 256, 3))
"""Rows of A and of B in a tile, and stages."""


def _ahead(arch: Arch) -> Iterator[ManyConfig]:
    """Kernels of `_many` with codes asked for two steps ahead."""
    if arch is not Arch.SM90A:
        return
    for pair, out_dtype, (tile_m, tile_n, stages) in product(WORD_PAIRS, (DType.BF16, DType.F16), AHEAD_TILES):
        yield ManyConfig(pair=pair, out_dtype=out_dtype, tile_m=tile_m, tile_n=tile_n, stages=stages)


_SM100_N = (64, 128, 256)
_SM100_CLUSTERS = {Sharing.ONE_SM: ((1, 1, 1), (2, 1, 1)), Sharing.TWO_SM: ((2, 1, 1), (4, 1, 1))}
_SM120_TILE = (128, 128)
"""Rows and columns of a tile. Of twice the size some kernels spilled (nvcc 13.0), and two stages of mixed codes have no
room."""


def _pairs(pair: Pair, arch: Arch) -> Iterator[PairConfig]:
    """Kernels of a pair on Blackwell: bf16 results of every tile, f16 results of one tile for each way of sharing."""
    mixes = pair.a_format == MXFP8
    if arch is Arch.SM100A:
        for sharing, tiles in _SM100_TILES.items():
            for n, cluster in tiles:
                tile = (256 if sharing is Sharing.TWO_SM else 128, n, 128 if mixes else 256)
                yield from _of_tile(pair, tile, cluster, sharing, arch, both=n == 128)
    if arch is Arch.SM120A:
        for sharing, k in product((Sharing.COOPERATIVE, Sharing.PINGPONG), (128, 256)):
            if k == 256 and (mixes or sharing is Sharing.PINGPONG):
                continue  # of mixed codes two stages have no room; pingpong spills 16 bytes (nvcc 13.0)
            yield from _of_tile(pair, (*_SM120_TILE, k), (1, 1, 1), sharing, arch, both=k == 128)


def _of_tile(
    pair: Pair, tile: tuple[int, int, int], cluster: tuple[int, int, int], sharing: Sharing, arch: Arch, *, both: bool
) -> Iterator[PairConfig]:
    for out_dtype in (DType.BF16, DType.F16) if both else (DType.BF16,):
        yield PairConfig(
            pair=pair,
            out_dtype=out_dtype,
            tile_shape_mnk=tile,
            cluster_shape_mnk=cluster,
            sharing=sharing,
            arch=arch,
        )


def _loading_ahead(arch: Arch) -> Iterator[AnyConfig]:
    """Kernels that ask for codes ahead, for few rows and for many. Beside them is one of 256 rows of e4m3 that adds up partial
    sums together."""
    for config, splits in product(_rings(arch), (1, 2, 3, 4)):
        yield replace(config, splits=splits)
    for few, splits in product(_tma_few(arch), (1, 2, 3, 4)):
        yield replace(few, splits=splits)
    for many, splits in product(_ahead(arch), SPLITS):
        if splits == 1 or (many.tile_m, many.tile_n) != (128, 256):
            yield replace(many, splits=splits)
    for folded, splits in product(_folded(arch), (1, 2, 3)):
        if folded.tile_m == 256:
            yield replace(folded, batched=True, splits=splits)
    yield from (replace(weight, blocks=1, stages=5, stays=True) for weight in _all(arch) if weight.tile_m == 256)
    yield from (replace(folded, stays=True) for folded in _folded(arch) if folded.tile_m == 256)


def sweep(arch: Arch) -> Iterator[PairConfig]:
    """What is not compiled for users: on sm120a second tiles of mxfp8 activations, for which the CUTLASS of the package is too
    old."""
    if arch is not Arch.SM120A:
        return
    for pair in (pair for pair in CODE_PAIRS if pair.a_format == MXFP8):
        # pingpong spills 52 bytes (nvcc 13.0)
        yield from _of_tile(pair, (_SM120_TILE[0], NARROW, 128), (1, 1, 1), Sharing.COOPERATIVE, arch, both=False)


def smoke(arch: Arch) -> Iterator[AnyConfig]:
    """The smoke selection: for each format of packed weights a tile of warps and one of groups of 128 threads; for every pair
    one kernel."""
    yield from (
        config
        for config in _all(arch)
        if (config.tile_m, config.k_groups) in ((16, 4), (32, 2)) and config.row_groups == 2
    )
    few = [config for config in _few(arch) if (config.tile_m, config.warps) == (8, 4)]
    yield from (config for config in few if config.out_dtype is DType.BF16 and config.in_words)
    yield from (config for config in few if (config.pair, config.prepacked) == (Pair.FLOATS_MXFP8, True))
    bf16 = [config for config in _folded(arch) if config.out_dtype is DType.BF16]
    yield from (config for config in bf16 if (config.tile_m, config.k_groups) == (64, 1))
    yield from (config for config in bf16 if (config.tile_m, config.row_groups, config.k_groups) == (16, 1, 4))
    yield from (config for config in _widened(arch) if (config.out_dtype, config.tile) == (DType.BF16, 64))
    f16 = (config for config in _widened(arch) if config.prepacked and config.out_dtype is DType.F16)
    yield from (config for config in f16 if (config.pair, config.tile) == (Pair.FLOATS_MXFP4, 64))
