"""How long steps of kernels take: of packed and folded weights by times of an H200 (docs/notes/blockscaled.md)."""

from typing import NamedTuple

from gemmill.families.blockscaled.config import AnyConfig, FewConfig, ManyConfig, PackedConfig, PairConfig
from gemmill.families.blockscaled.design import FewLoop, Group, ManyLoop, PackedLoop
from gemmill.families.blockscaled.pairs import Pair
from gemmill.formats.layout import SIDE
from gemmill.vocab import Arch

_OF_WARPS = {
    (1, 8, 4, 1, 5): (383, 794),
    (1, 8, 4, 1, 8): (471, 522),
    (1, 8, 8, 1, 8): (430, 713),
    (1, 16, 8, 1, 6): (560, 703),
    (2, 8, 4, 1, 5): (741, 759),
    (4, 8, 4, 1, 5): (925, 937),
    (1, 16, 4, 1, 5): (547, 564),
    (2, 16, 4, 1, 4): (664, 973),
}
"""Nanoseconds for a stage of a CTA alone on a multiprocessor, and permille of them for each of two that share one.

Keys are groups on different rows of weights, rows of A, groups along K, blocks of each, stages.
"""
_OF_WARPGROUPS = {
    (2, 32, 1, 2, 6): (423, 818),
    (2, 32, 2, 2, 5): (681, 1161),
    (2, 64, 1, 2, 4): (637, 713),
    (2, 64, 2, 2, 4): (951, 594),
    (2, 96, 1, 2, 5): (600, 821),
    (2, 128, 1, 2, 5): (713, 632),
    (2, 192, 1, 2, 3): (1012, 903),
    (2, 256, 1, 2, 3): (1293, 775),
}
_OF_FEW = {
    (8, 4): (3156, 286),
    (8, 8): (4397, 507),
    (16, 4): (3649, 291),
    (16, 8): (5062, 268),
}
"""Nanoseconds and permille for 128 columns of each warp, by rows of A and warps."""
_OF_WORDS = {
    (64, 256): (1527, 587),
    (128, 256): (1496, 607),
}
"""Nanoseconds and permille for 64 columns, by rows of A and rows of B."""
_OF_FOLDED = {
    (2, 16, 1, 1, 9): (408, 655),
    (2, 16, 2, 1, 5): (777, 883),
    (2, 16, 2, 1, 9): (488, 1000),
    (2, 32, 1, 1, 8): (433, 727),
    (2, 32, 2, 1, 8): (571, 1000),
    (2, 64, 1, 1, 6): (542, 718),
    (2, 64, 2, 1, 6): (696, 1000),
    (2, 128, 2, 1, 4): (934, 1000),
    (2, 256, 1, 1, 5): (874, 667),
}
"""The times of `_OF_WARPGROUPS` for folded weights with scales of rows."""
_BATCHED_PS = 711_000
"""Picoseconds for a stage of 256 rows, one group and one block, whose sums have a common addition."""
_STAYING_PS = {False: 590_000, True: 640_000}
"""Picoseconds for a block of 256 rows in persistent CTAs, with bf16 and with e4m3. They are less than a step's by the
beginning of a turn, which the model counts and these CTAs hide.
"""
_OF_FOLDED_WARPS = {(1, 8, 4, 1, 6): (738, 595), (2, 8, 4, 1, 5): (1060, 925), (1, 16, 4, 1, 6): (675, 505)}
_BLOCK_NS, _TOKEN_NS, _SHARED = 80, 3, 850
"""Estimates where nothing was measured: nanoseconds for a block, nanoseconds for four rows of A, permille."""
_OF_FOLDED_GROUPED = {8: 200, 16: 218, 32: 265, 64: 359, 128: 305}
"""Nanoseconds for 64 columns of a tile of folded weights with scales in groups, by its rows of A.

They are of CTAs that share a multiprocessor (docs/notes/blockscaled.md). Rows between take the time of the next. Slices
of K cost a twentieth.
"""

_OF_PIECES = {
    (Pair.FLOATS_MXFP6, 64): (1450, 439),
    (Pair.FLOATS_MXFP6, 128): (2554, 588),
    (Pair.FLOATS_MXFP8, 64): (1371, 463),
    (Pair.FLOATS_MXFP8, 128): (1963, 767),
    (Pair.NVFP4, 64): (871, 507),
    (Pair.NVFP4, 128): (1740, 622),
    (Pair.MXFP8, 64): (1467, 298),
    (Pair.MXFP8, 128): (2193, 295),
    (Pair.MXFP8_MXFP6, 64): (1249, 328),
    (Pair.MXFP8_MXFP6, 128): (1674, 624),
}
"""Nanoseconds and permille for 64 columns of both operands, by the pair and the rows and columns of a tile."""
_OF_OTHER_PIECES = {64: (1175, 358), 128: (2113, 469)}
"""The same of pairs that nobody timed."""
_OF_CODES_FEW = {
    (Pair.FLOATS_MXFP6, 8): (3751, 287),
    (Pair.FLOATS_MXFP6, 16): (3834, 340),
    (Pair.FLOATS_MXFP8, 8): (3235, 320),
    (Pair.FLOATS_MXFP8, 16): (3826, 280),
    (Pair.MXFP8, 8): (4324, 281),
    (Pair.MXFP8_MXFP6, 8): (3584, 395),
}
"""Nanoseconds and permille for 128 columns of each of four warps, by the pair and rows of A."""
_OF_OTHER_FEW = {
    (4, 8): (4800, 333),
    (4, 16): (9048, 333),
    (6, 8): (4815, 370),
    (6, 16): (6000, 388),
    (8, 8): (2903, 475),
    (8, 16): (4081, 335),
}
"""The same of other pairs, by the bits of a weight and rows of A. Those of 4 bits are from four times of 8192 x 8192
(docs/notes/blockscaled.md)."""
_OF_RING = {
    (8, 4, 3): (1311, 422),
    (8, 8, 4): (1256, 1000),
    (16, 4, 2): (2366, 271),
    (16, 4, 4): (1580, 517),
    (16, 8, 4): (1822, 1000),
}
"""Nanoseconds and permille of warps that ask for 4-bit codes of both operands ahead, by rows of A, warps and stages."""
_OF_OTHER_RING = {
    (4, 8): (1800, 500),
    (4, 16): (3800, 500),
    (6, 8): (3976, 521),
    (6, 16): (3405, 310),
    (8, 8): (2118, 692),
    (8, 16): (2835, 695),
}
"""Nanoseconds and permille of four warps, two CTAs to a multiprocessor, by the bits of a weight and rows of A. Those of 4 bits
are by times of throw-away kernels."""
_OF_TMA = {
    (Pair.FLOATS_NVFP4, 8, 4): (2190, 710),
    (Pair.FLOATS_NVFP4, 8, 8): (2870, 1000),
    (Pair.FLOATS_NVFP4, 16, 4): (1740, 1000),
    (Pair.FLOATS_NVFP4, 32, 4): (2330, 1000),
    (Pair.FLOATS_MXFP4, 8, 4): (2440, 700),
    (Pair.FLOATS_MXFP4, 8, 8): (3260, 1000),
    (Pair.FLOATS_MXFP4, 16, 4): (2000, 1000),
    (Pair.FLOATS_MXFP4, 32, 4): (2640, 1000),
    (Pair.FLOATS_MXFP6, 8, 4): (1280, 682),
    (Pair.FLOATS_MXFP6, 8, 8): (2270, 1000),
    (Pair.FLOATS_MXFP6, 16, 4): (1653, 653),
    (Pair.FLOATS_MXFP6, 16, 8): (1983, 1000),
    (Pair.FLOATS_MXFP6, 32, 4): (1430, 1000),
    (Pair.FLOATS_MXFP8, 8, 4): (1480, 640),
    (Pair.FLOATS_MXFP8, 8, 8): (1740, 1000),
    (Pair.FLOATS_MXFP8, 16, 4): (1605, 675),
    (Pair.FLOATS_MXFP8, 16, 8): (2115, 1000),
    (Pair.FLOATS_MXFP8, 32, 4): (1246, 1000),
}
"""Nanoseconds and permille of a stage of every warp that TMA feeds, by rows of A and warps."""
_OF_AHEAD = {
    (64, 128): (849, 530),
    (64, 256): (1096, 632),
    (128, 128): (1040, 567),
    (128, 256): (1133, 1000),
}
"""As `_OF_WORDS`, for codes with a prefetch distance of two steps."""
_LEFT_PERMILLE: dict[FewLoop | ManyLoop, int] = {
    FewLoop.REGISTERS: 447,
    FewLoop.RING: 422,
    FewLoop.TMA: 816,
    ManyLoop.WORDS: 728,
    ManyLoop.AHEAD: 1000,
}
_LEFT_OF_PIECES = {64: 447, 128: 642}
"""`RowFacts.left_permille` by the main loop, of `ManyLoop.PIECES` by the rows of A. CTAs of other kernels end together, and the last wait
for all before them."""
_WAITING_PERMILLE = 667
"""Permille of a step for each of the CTAs that share a multiprocessor and hide one another's waits."""
_SPARED_PERMILLE = 900
"""Permille of a step of a tile that two multiprocessors share: each loads half of B."""
# A prediction, from data sheets.
_PRODUCTS_OF_SM = {Arch.SM100A: 30_000, Arch.SM120F: 5_000}
"""Multiply-adds of 4-bit codes that a multiprocessor does a nanosecond; of 8-bit codes it does half as many."""


class Step(NamedTuple):
    """A step of a tile, and its time."""

    columns: int
    """Columns along K."""
    picoseconds: int
    """Time of a CTA alone on a multiprocessor."""
    shared_permille: int
    """Permille of `picoseconds` for each of the CTAs that share a multiprocessor."""


def step_of(config: AnyConfig) -> Step:
    """The step of a kernel's main loop."""
    match config:
        case FewConfig():
            return Step(config.design.warps * config.stage_columns, *_of_few(config))
        case ManyConfig():
            return Step(SIDE, *_of_many(config))
        case PackedConfig():
            return (
                _of_grouped(config) if config.grouped and config.design.group is Group.WARPGROUP else _of_packed(config)
            )
        case PairConfig():
            return _of_pair(config)


def left_permille_of(config: AnyConfig) -> int:
    """`RowFacts.left_permille` of a kernel."""
    if not isinstance(config, FewConfig | ManyConfig):
        return 1000
    design = config.design
    return (
        _LEFT_OF_PIECES[design.tile_mn[0]] if design.main_loop is ManyLoop.PIECES else _LEFT_PERMILLE[design.main_loop]
    )


def _of_many(config: ManyConfig) -> tuple[int, int]:
    """Picoseconds, and permille of them for each of the CTAs that share a multiprocessor."""
    tile_m, tile_n = config.design.tile_mn
    match config.design.main_loop:
        case ManyLoop.PIECES:
            nanoseconds, permille = _OF_PIECES.get((config.pair, tile_m), _OF_OTHER_PIECES[tile_m])
        case ManyLoop.WORDS:
            nanoseconds, permille = _OF_WORDS.get((tile_m, tile_n), (tile_m * tile_n // 20, 700))
        case ManyLoop.AHEAD:
            nanoseconds, permille = _OF_AHEAD[tile_m, tile_n]
    return 1000 * nanoseconds, permille


def _of_packed(config: PackedConfig) -> Step:
    d, columns, folded = config.design, config.stage_columns, config.is_folded
    if d.main_loop is PackedLoop.STAYS:
        return Step(columns, _STAYING_PS[folded], _SHARED)
    if d.main_loop is PackedLoop.BATCHED:
        return Step(columns, _BATCHED_PS, _SHARED)
    of_warps, of_groups = (_OF_FOLDED_WARPS, _OF_FOLDED) if folded else (_OF_WARPS, _OF_WARPGROUPS)
    steps = of_warps if d.group is Group.WARP else of_groups
    parts = d.tile_mn[1] * columns // SIDE**2
    nanoseconds, permille = steps.get(
        (d.row_groups, d.tile_m, d.k_groups, d.blocks, d.stages),
        (parts * (_BLOCK_NS + _TOKEN_NS * d.tile_m // 4) // config.turns, _SHARED),
    )
    return Step(columns, 1000 * nanoseconds, permille)


def _of_grouped(config: PackedConfig) -> Step:
    known = _OF_FOLDED_GROUPED
    nanoseconds = next((ns for tile, ns in known.items() if tile >= config.design.tile_m), max(known.values()))
    shared_ps = 1000 * nanoseconds * (105 if config.splits > 1 else 100) // 100
    return Step(SIDE, shared_ps * 3 // 2, _WAITING_PERMILLE)


def _of_few(config: FewConfig) -> tuple[int, int]:
    """Picoseconds of a step of all warps, and permille of them for each of the CTAs that share a multiprocessor."""
    d, bits = config.design, config.pair.b_format.code.bits
    if d.main_loop is FewLoop.TMA:
        nanoseconds, permille = _OF_TMA.get((config.pair, d.tile_m, d.warps), (100 * d.tile_m * d.warps, _SHARED))
    elif d.main_loop is FewLoop.REGISTERS:
        other = _OF_CODES_FEW.get((config.pair, d.tile_m)) or _OF_OTHER_FEW[bits, d.tile_m]
        nanoseconds, permille = _OF_FEW[d.tile_m, d.warps] if config.in_words else other
    elif config.in_words and (d.tile_m, d.warps, d.stages) in _OF_RING:
        nanoseconds, permille = _OF_RING[d.tile_m, d.warps, d.stages]
    else:
        nanoseconds, permille = _OF_OTHER_RING[bits, d.tile_m]
        return 1000 * nanoseconds * d.warps // 4, permille
    return 1000 * nanoseconds, permille


def _of_pair(config: PairConfig) -> Step:
    tile_m, tile_n = config.design.tile_mn
    products = tile_m * tile_n * SIDE * (2 if config.mixes else 1)
    picoseconds = products * 1000 // _PRODUCTS_OF_SM[config.arch]
    return Step(SIDE, picoseconds // 2 * _SPARED_PERMILLE // 1000 if config.sms == 2 else picoseconds, 1000)
