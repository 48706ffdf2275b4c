"""The kernels of the named selections."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from gemmill.families.blockscaled.config import (
    NARROW,
    AnyConfig,
    Epilogue,
    FewConfig,
    ManyConfig,
    Operands,
    PackedConfig,
    PairConfig,
)
from gemmill.families.blockscaled.design import (
    FewDesign,
    FewLoop,
    Group,
    ManyDesign,
    ManyLoop,
    PackedDesign,
    PackedLoop,
    PairDesign,
    Sharing,
)
from gemmill.families.blockscaled.pairs import CODE_PAIRS, FP4_PAIRS, WEIGHT_PAIRS, WORD_PAIRS, Pair
from gemmill.formats.layout import SIDE
from gemmill.vocab import Arch, DType
from gemmill.vocab.format import MXFP8

BF16, F16 = Epilogue(out_dtype=DType.BF16), Epilogue(out_dtype=DType.F16)
SPLITS = (1, 2, 4)
WEIGHT_SPLITS = (1, 2, 3, 4, 5, 7, 8)
"""Slices of K. Clusters of 5 and of 7 fill a device where weights have 40 tiles of 128 rows, or 32."""


def default(arch: Arch) -> Iterator[AnyConfig]:
    """The default selection. On Hopper it has every tile of both formats, with K in one slice or several; on Blackwell all
    pairs of codes, and on sm120f weights that warps widen or fold."""
    if arch is not Arch.SM90A:
        for pair in CODE_PAIRS:
            yield from _pairs(pair, arch)
        if arch is Arch.SM120F:
            yield from _of_warps()
        return
    for config, splits in product(_all(), WEIGHT_SPLITS):
        yield replace(config, splits=splits)
    for folded, splits in product(_folded(), WEIGHT_SPLITS):
        # of clusters of 4 with a CTA on each multiprocessor 31 fit, not 33
        if splits <= 3 or folded.ctas_of_sm > 1:
            yield replace(folded, splits=splits)
    yield from _pieces()
    for few, splits in product(_few(), (*SPLITS, 8)):
        yield replace(few, splits=splits)
    for many, splits in product(_many(_WORDS), (*SPLITS, 8)):
        if splits == 1 or many.design.tile_mn[0] == SIDE:
            yield replace(many, splits=splits)
    yield from _loading_ahead()


def _by_warps(*tiles: tuple[int, int, int, int, int]) -> tuple[PackedDesign, ...]:
    """Groups of single warps: groups on different rows of weights, rows of A, groups along K, blocks of each, stages."""
    return tuple(
        PackedDesign(group=Group.WARP, row_groups=rows, tile_m=tile_m, k_groups=k_groups, blocks=blocks, stages=stages)
        for rows, tile_m, k_groups, blocks, stages in tiles
    )


def _by_warpgroups(*tiles: tuple[int, int, int, int]) -> tuple[PackedDesign, ...]:
    """Of two groups of 128 threads on different rows of weights: rows of A, groups along K, blocks of each, stages."""
    return tuple(
        PackedDesign(tile_m=tile_m, k_groups=k_groups, blocks=blocks, stages=stages)
        for tile_m, k_groups, blocks, stages in tiles
    )


_WARP_TILES = _by_warps(
    (1, 8, 4, 1, 5),
    (1, 8, 4, 1, 8),
    (1, 8, 8, 1, 8),
    (2, 8, 4, 1, 5),
    (4, 8, 4, 1, 5),
    (1, 16, 4, 1, 5),
    (1, 16, 8, 1, 6),
    (2, 16, 4, 1, 4),
)
"""Eight groups along K take stages in turns: so a CTA has a multiprocessor's warps, and needs no cluster."""
_TILES = _by_warpgroups(
    (32, 1, 2, 6),
    (32, 2, 2, 5),
    (64, 1, 2, 4),
    (64, 2, 2, 4),
    (96, 1, 2, 5),
    (128, 1, 2, 5),
    (192, 1, 2, 3),
    (256, 1, 2, 3),
)
"""Two groups of 96 rows and more leave too few registers, as do wider stages for a small M. The tensor core's products
would be serialised. docs/notes/blockscaled.md has the times of others too.
"""


def _all() -> Iterator[PackedConfig]:
    """Kernels of weights with bf16 activations."""
    for pair, design in product(FP4_PAIRS, (*_WARP_TILES, *_TILES)):
        yield PackedConfig(operands=Operands(pair=pair, prepacked=True), design=design, epilogue=BF16)


_FOLDED_TILES = _by_warpgroups(
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
_GROUPED_WARP_TILES = _by_warps((1, 8, 4, 1, 6), (2, 8, 4, 1, 5), (1, 16, 4, 1, 6))
"""With scales of rows warps were the fastest nowhere (docs/notes/blockscaled.md)."""
_GROUPED_TILES = _by_warpgroups((16, 1, 1, 9), (64, 1, 1, 6), (128, 1, 1, 6))
_F16_TILES = _by_warpgroups((16, 1, 1, 9), (64, 1, 1, 6), (256, 1, 1, 5))


def _folded() -> Iterator[PackedConfig]:
    """Kernels of folded weights: bf16 results of every tile, nvfp4 and f16 results of some tiles."""
    mxfp4, nvfp4 = Pair.E4M3_MXFP4, Pair.E4M3_NVFP4
    kinds = (
        (mxfp4, BF16, False, _FOLDED_TILES),
        (mxfp4, BF16, True, (*_GROUPED_WARP_TILES, *_GROUPED_TILES)),
        (mxfp4, F16, False, _F16_TILES),
        (mxfp4, F16, True, (*_GROUPED_WARP_TILES[2:], *_GROUPED_TILES[1:2])),
        (nvfp4, BF16, False, (_FOLDED_TILES[0], _FOLDED_TILES[2], *_FOLDED_TILES[4:])),
        (nvfp4, F16, False, _F16_TILES[1:2]),
    )
    for pair, epilogue, grouped, designs in kinds:
        operands = Operands(pair=pair, prepacked=True, grouped=grouped)
        yield from (PackedConfig(operands=operands, design=design, epilogue=epilogue) for design in designs)


def _pieces() -> Iterator[ManyConfig]:
    """Kernels that upcast all pairs, in tiles for a small and for a large M. Weights are both a checkpoint's and those
    packed in rows.
    """
    for pair, epilogue, tile in product(Pair, (BF16, F16), (SIDE, 2 * SIDE)):
        config = ManyConfig(operands=Operands(pair=pair), design=ManyDesign(tile_mn=(tile, tile)), epilogue=epilogue)
        if pair is Pair.E4M3_MXFP4:
            yield config
            if tile == SIDE:
                yield replace(config, operands=Operands(pair=pair, grouped=True))
        elif pair in CODE_PAIRS:
            yield config
        elif pair in WEIGHT_PAIRS:
            if epilogue == BF16 or pair.b_format.has_global_scale:
                yield config
            if epilogue == F16 or pair not in FP4_PAIRS:
                yield replace(config, operands=Operands(pair=pair, prepacked=True))


def _few() -> Iterator[FewConfig]:
    """Kernels for a small M: of 4-bit codes of both operands, then of the other pairs that `_pieces` has."""
    for pair, epilogue, tile_m, warps in product(WORD_PAIRS, (BF16, F16), (8, 16), (4, 8)):
        if pair is Pair.MXFP4 and (tile_m, warps) == (16, 4):
            continue  # spills 8 bytes
        yield FewConfig(operands=Operands(pair=pair), design=FewDesign(tile_m=tile_m, warps=warps), epilogue=epilogue)
    others = [x for x in _pieces() if x.design.tile_mn[0] == SIDE and not x.grouped and x.pair not in WORD_PAIRS]
    for one, tile_m in product(others, (8, 16)):
        if one.pair in (Pair.MXFP8, Pair.MXFP8_MXFP6) and tile_m > 8:
            continue  # spills 16 and 64 bytes
        yield FewConfig(operands=one.operands, design=FewDesign(tile_m=tile_m, warps=4), epilogue=one.epilogue)


_RINGS = {
    Pair.NVFP4: ((8, 4, 3), (8, 8, 4), (16, 4, 2), (16, 4, 4), (16, 8, 4)),
    Pair.MXFP4: ((8, 4, 3), (8, 8, 4), (16, 8, 4)),  # four CTAs of four warps and 16 rows spill
    Pair.FLOATS_NVFP4: ((8, 4, 3), (16, 4, 2)),  # K of no multiple of 256, which TMA wants
}
_TMA_FEW = {
    Pair.FLOATS_NVFP4: ((8, 4, 2), (8, 8, 2), (16, 4, 3), (32, 4, 2)),
    Pair.FLOATS_MXFP4: ((8, 4, 2), (8, 8, 2), (16, 4, 3), (32, 4, 2)),
    Pair.FLOATS_MXFP6: ((8, 4, 3), (8, 8, 3), (16, 4, 2), (16, 8, 2), (32, 4, 3)),
    Pair.FLOATS_MXFP8: ((8, 4, 2), (8, 8, 2), (16, 4, 2), (16, 8, 2), (32, 4, 3)),
}
"""Rows of A, warps, and stages of each warp."""


def _staged() -> Iterator[FewConfig]:
    """Kernels for a small M whose warps prefetch codes, then those that TMA feeds."""
    for loop, tiles_of in ((FewLoop.RING, _RINGS), (FewLoop.TMA, _TMA_FEW)):
        for pair, tiles in tiles_of.items():
            operands = Operands(pair=pair, prepacked=pair in WEIGHT_PAIRS)
            for epilogue, (tile_m, warps, stages) in product((BF16, F16), tiles):
                if pair in FP4_PAIRS and epilogue == BF16:
                    continue  # packed weights of 4 bits with bf16 are blocks
                design = FewDesign(main_loop=loop, tile_m=tile_m, warps=warps, stages=stages)
                yield FewConfig(operands=operands, design=design, epilogue=epilogue)


_WORDS = tuple(ManyDesign(main_loop=ManyLoop.WORDS, tile_mn=tile) for tile in ((64, 256), (128, 256)))
"""The tile of 128 rows of A has no room for sums of slices of K."""
_AHEAD = tuple(
    ManyDesign(main_loop=ManyLoop.AHEAD, tile_mn=tile, stages=stages)
    for tile, stages in (((64, 128), 3), ((64, 256), 2), ((128, 128), 3), ((128, 256), 3))
)


def _many(designs: tuple[ManyDesign, ...]) -> Iterator[ManyConfig]:
    """Kernels of 4-bit codes of both operands for more rows."""
    for pair, epilogue, design in product(WORD_PAIRS, (BF16, F16), designs):
        yield ManyConfig(operands=Operands(pair=pair), design=design, epilogue=epilogue)


def _loading_ahead() -> Iterator[AnyConfig]:
    """Kernels that prefetch codes, for a small and for a large M. In addition there is one of 256 rows of e4m3 that
    adds up partial sums together, and persistent ones.
    """
    for config, splits in product(_staged(), (1, 2, 3, 4)):
        yield replace(config, splits=splits)
    for many, splits in product(_many(_AHEAD), SPLITS):
        if splits == 1 or many.design.tile_mn != (128, 256):
            yield replace(many, splits=splits)
    folded = [one for one in _folded() if one.design.tile_m == 256]
    for one, splits in product(folded, (1, 2, 3)):
        yield replace(one, design=replace(one.design, main_loop=PackedLoop.BATCHED), splits=splits)
    for one in (*(weight for weight in _all() if weight.design.tile_m == 256), *folded):
        yield replace(one, design=replace(one.design, main_loop=PackedLoop.STAYS, blocks=1, stages=5))


_SM120_WIDENED = _by_warps((1, 8, 4, 1, 5), (1, 8, 8, 1, 7), (2, 8, 4, 1, 4), (1, 16, 4, 1, 5), (1, 32, 4, 1, 3))
_SM120_FOLDED = _by_warps((1, 8, 4, 1, 5), (1, 16, 4, 1, 5))
"""Fewer stages than on Hopper, as shared memory has room for."""


def _of_warps() -> Iterator[AnyConfig]:
    """Kernels of sm120f for weights of 4, 6 and 8 bits: those that warps multiply, whatever the rows of A."""
    of_blocks = [
        PackedConfig(operands=Operands(pair=pair, prepacked=True), design=design, epilogue=BF16, arch=Arch.SM120F)
        for pair, design in product(FP4_PAIRS, _SM120_WIDENED)
    ]
    kinds = ((Pair.E4M3_MXFP4, False), (Pair.E4M3_MXFP4, True), (Pair.E4M3_NVFP4, False))
    for (pair, grouped), design, epilogue in product(kinds, _SM120_FOLDED, (BF16, F16)):
        operands = Operands(pair=pair, prepacked=True, grouped=grouped)
        of_blocks.append(PackedConfig(operands=operands, design=design, epilogue=epilogue, arch=Arch.SM120F))
    in_rows = [replace(one, arch=Arch.SM120F) for one in _few() if one.pair not in CODE_PAIRS]
    for splits in SPLITS:
        yield from (replace(config, splits=splits) for config in of_blocks)
        yield from (replace(config, splits=splits) for config in in_rows)


_SM100_TILES = {
    Sharing.ONE_SM: ((64, (1, 1, 1)), (128, (1, 1, 1)), (256, (2, 1, 1))),
    Sharing.TWO_SM: ((64, (2, 1, 1)), (128, (2, 1, 1)), (256, (4, 1, 1))),
}
"""Columns of a tile, and its cluster. Wide tiles are for large results, which have whole clusters. Every further tile would
take a minute of compiling for each pair."""
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
    if arch is Arch.SM120F:
        for sharing, k in product((Sharing.COOPERATIVE, Sharing.PINGPONG), (128, 256)):
            if k == 256 and (mixes or sharing is Sharing.PINGPONG):
                continue  # of mixed codes two stages have no room; pingpong spills 16 bytes (nvcc 13.0)
            yield from _of_tile(pair, (*_SM120_TILE, k), (1, 1, 1), sharing, arch, both=k == 128)


def _of_tile(
    pair: Pair, tile: tuple[int, int, int], cluster: tuple[int, int, int], sharing: Sharing, arch: Arch, *, both: bool
) -> Iterator[PairConfig]:
    design = PairDesign(tile_shape_mnk=tile, cluster_shape_mnk=cluster, sharing=sharing)
    for epilogue in (BF16, F16) if both else (BF16,):
        yield PairConfig(operands=Operands(pair=pair), design=design, epilogue=epilogue, arch=arch)


def sweep(arch: Arch) -> Iterator[PairConfig]:
    """The kernels outside of the default selection: on sm120f second tiles of mxfp8 activations, which the CUTLASS of
    the package is too old for.
    """
    if arch is not Arch.SM120F:
        return
    for pair in (pair for pair in CODE_PAIRS if pair.a_format == MXFP8):
        # pingpong spills 52 bytes (nvcc 13.0)
        yield from _of_tile(pair, (_SM120_TILE[0], NARROW, 128), (1, 1, 1), Sharing.COOPERATIVE, arch, both=False)


def smoke(arch: Arch) -> Iterator[AnyConfig]:
    """The smoke selection: for each format of packed weights a tile of warps and one of groups of 128 threads; for every pair
    one kernel."""
    if arch is not Arch.SM90A:
        return
    for config in _all():
        d = config.design
        if (d.tile_m, d.k_groups) in ((16, 4), (32, 2)) and d.row_groups == 2:
            yield config
    few = [config for config in _few() if (config.design.tile_m, config.design.warps) == (8, 4)]
    yield from (config for config in few if config.epilogue == BF16 and config.in_words)
    yield from (config for config in few if (config.pair, config.prepacked) == (Pair.FLOATS_MXFP8, True))
    bf16 = [config for config in _folded() if config.epilogue == BF16]
    yield from (x for x in bf16 if (x.design.tile_m, x.design.k_groups) == (64, 1))
    yield from (x for x in bf16 if (x.design.tile_m, x.design.row_groups, x.design.k_groups) == (16, 1, 4))
    pieces = [config for config in _pieces() if config.design.tile_mn[0] == SIDE]
    yield from (config for config in pieces if config.epilogue == BF16)
    packed_f16 = Operands(pair=Pair.FLOATS_MXFP4, prepacked=True)
    yield from (config for config in pieces if (config.operands, config.epilogue) == (packed_f16, F16))
