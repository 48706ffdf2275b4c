"""How long steps of kernels take: of packed and folded weights by times of an H200 (docs/notes/fp4_weights.md, folded.md)."""

from typing import NamedTuple

from gemmill.families.blockscaled.config import (
    AnyConfig,
    FewConfig,
    FoldedConfig,
    Group,
    ManyConfig,
    PackedConfig,
    PairConfig,
    WidenedConfig,
)
from gemmill.formats.layout import SIDE
from gemmill.vocab import Arch

_OF_WARPS = {
    (1, 8, 4, 1, 5): (488, 670),
    (1, 8, 4, 1, 8): (414, 568),
    (1, 8, 8, 1, 8): (584, 486),
    (1, 16, 8, 1, 6): (609, 638),
    (2, 8, 4, 1, 5): (679, 813),
    (4, 8, 4, 1, 5): (932, 937),
    (1, 16, 4, 1, 5): (531, 571),
    (2, 16, 4, 1, 4): (804, 730),
}
"""Nanoseconds for a stage of a CTA that has a multiprocessor alone, and permille of them for each of two that share one.

Keys are groups on different rows of weights, rows of A, groups along K, blocks of each, stages.
"""
_OF_WARPGROUPS = {
    (2, 32, 1, 2, 6): (476, 639),
    (2, 32, 2, 2, 5): (743, 1161),
    (2, 64, 1, 2, 4): (606, 696),
    (2, 64, 2, 2, 4): (974, 594),
    (2, 96, 1, 2, 5): (600, 821),
    (2, 128, 1, 2, 5): (772, 632),
    (2, 192, 1, 2, 3): (1039, 903),
    (2, 256, 1, 2, 3): (1374, 775),
}
_OF_FEW = {(8, 4): (2432, 413), (8, 8): (3426, 465), (16, 4): (2720, 494), (16, 8): (4182, 526)}
"""Nanoseconds and permille for 128 columns of each warp, by rows of A and warps."""
_OF_MANY = {(64, 256): (1739, 471), (128, 256): (1265, 607)}
"""Nanoseconds and permille for 64 columns, by rows of A and rows of B."""
_OF_FOLDED = {
    (2, 16, 1, 1, 9): (428, 560),
    (2, 16, 2, 1, 5): (834, 774),
    (2, 16, 2, 1, 9): (621, 1000),
    (2, 32, 1, 1, 8): (497, 583),
    (2, 32, 2, 1, 8): (706, 1000),
    (2, 64, 1, 1, 6): (604, 610),
    (2, 64, 2, 1, 6): (858, 1000),
    (2, 128, 2, 1, 4): (1057, 1000),
    (2, 256, 1, 1, 5): (889, 667),
}
"""The times of `_OF_WARPGROUPS` for folded weights with scales of rows."""
_BATCHED_PS = 795_000
"""Picoseconds for a stage of 256 rows, one group and one block, whose sums are added up together."""
_OF_FOLDED_WARPS = {(1, 8, 4, 1, 6): (738, 595), (2, 8, 4, 1, 5): (1060, 925), (1, 16, 4, 1, 6): (675, 505)}
_BLOCK_NS, _TOKEN_NS, _SHARED = 80, 3, 850
"""Estimates where nothing was measured: nanoseconds for a block, nanoseconds for four rows of A, permille."""
_OF_FOLDED_GROUPED = {8: 200, 16: 218, 32: 265, 64: 359, 128: 305}
"""Nanoseconds for 64 columns of a tile of folded weights with scales in groups, by its rows of A.

They are of CTAs that share a multiprocessor (docs/notes/folded.md). Rows between take the time of the next. Slices of K cost a
twentieth.
"""

_OF_WIDENED = {64: (1218, 371), 128: (2122, 500)}
"""Nanoseconds and permille for 64 columns of both operands, by the rows and columns of a tile."""
_OF_OTHER_FEW = {4: 200, 6: 250, 8: 215}
"""Nanoseconds for 64 columns of 64 rows of weights and 8 of A, by the bits of a weight. They are from four times of 8192 x
8192 (docs/notes/fp4_weights.md)."""
_OF_RING = {
    (8, 4, 3): (1700, 400),
    (8, 8, 4): (1600, 1000),
    (16, 4, 2): (2000, 350),
    (16, 4, 4): (1650, 500),
    (16, 8, 4): (1700, 1000),
}
"""Nanoseconds and permille of warps that ask for 4-bit codes of both operands ahead, by rows of A, warps and stages. They are
by times of throw-away kernels."""
_OF_OTHER_RING = {4: (1800, 3800), 6: (2600, 4000), 8: (2400, 4200)}
"""Nanoseconds for 8 and for 16 rows of A, by the bits of a weight. They are of four warps, with two CTAs to a
multiprocessor."""
_OF_AHEAD = {(64, 128): (640, 700), (64, 256): (1000, 695), (128, 128): (900, 700), (128, 256): (1209, 1000)}
"""As `_OF_MANY`, for codes that are asked for two steps ahead. By times of throw-away kernels."""
_WAITING_PERMILLE = 667
"""Permille of a step for each of the CTAs that share a multiprocessor and hide one another's waits."""
_SPARED_PERMILLE = 900
"""Permille of a step of a tile that two multiprocessors share: each loads half of B."""
# A prediction, from data sheets.
_PRODUCTS_OF_SM = {Arch.SM100A: 30_000, Arch.SM120A: 5_000}
"""Multiply-adds of 4-bit codes that a multiprocessor does a nanosecond; of 8-bit codes it does half as many."""


class Step(NamedTuple):
    """A step of a tile, and its time."""

    columns: int
    """Columns along K."""
    picoseconds: int
    """Time of a CTA that has a multiprocessor alone."""
    shared_permille: int
    """Permille of `picoseconds` for each of the CTAs that share a multiprocessor."""


def step_of(config: AnyConfig) -> Step:
    """The step of a kernel's main loop."""
    match config:
        case WidenedConfig():
            nanoseconds, permille = _OF_WIDENED[config.tile]
            return Step(SIDE, 1000 * nanoseconds, permille)
        case FewConfig():
            return _of_few(config)
        case ManyConfig():
            known = _OF_MANY.get((config.tile_m, config.tile_n), (config.tile_m * config.tile_n // 20, 700))
            if config.stages:
                known = _OF_AHEAD[config.tile_m, config.tile_n]
            return Step(SIDE, 1000 * known[0], known[1])
        case PairConfig():
            return _of_pair(config)
        case FoldedConfig() if config.grouped and config.group is Group.WARPGROUP:
            return _of_grouped(config)
        case _:
            return _of_packed(config)


def _of_packed(config: PackedConfig) -> Step:
    key = (config.row_groups, config.tile_m, config.k_groups, config.blocks, config.stages)
    of_warps, of_groups = (
        (_OF_FOLDED_WARPS, _OF_FOLDED) if isinstance(config, FoldedConfig) else (_OF_WARPS, _OF_WARPGROUPS)
    )
    steps = of_warps if config.group is Group.WARP else of_groups
    if isinstance(config, FoldedConfig) and config.batched:
        return Step(config.stage_columns, _BATCHED_PS, _SHARED)
    parts = config.tile_n * config.stage_columns // SIDE**2
    nanoseconds, permille = steps.get(
        key, (parts * (_BLOCK_NS + _TOKEN_NS * config.tile_m // 4) // config.turns, _SHARED)
    )
    return Step(config.stage_columns, 1000 * nanoseconds, permille)


def _of_grouped(config: FoldedConfig) -> Step:
    known = _OF_FOLDED_GROUPED
    nanoseconds = next((ns for tile, ns in known.items() if tile >= config.tile_m), max(known.values()))
    shared_ps = 1000 * nanoseconds * (105 if config.splits > 1 else 100) // 100
    return Step(SIDE, shared_ps * 3 // 2, _WAITING_PERMILLE)


def _of_few(config: FewConfig) -> Step:
    columns = 128 * config.warps
    if config.stages:
        return Step(columns, *_of_ring(config))
    if config.in_words:
        nanoseconds, permille = _OF_FEW[config.tile_m, config.warps]
        return Step(columns, 1000 * nanoseconds, permille)
    each = _OF_OTHER_FEW[config.pair.b_format.code.bits] * (config.tile_m + 1) // 9
    return Step(columns, 1000 * each * 2 * config.warps * config.ctas_of_sm, 1000 // config.ctas_of_sm)


def _of_ring(config: FewConfig) -> tuple[int, int]:
    """Picoseconds of a step of all warps, and permille of them for each of the CTAs that share a multiprocessor."""
    known = _OF_RING.get((config.tile_m, config.warps, config.stages)) if config.in_words else None
    if known is not None:
        return 1000 * known[0], known[1]
    of_tiles = _OF_OTHER_RING[config.pair.b_format.code.bits]
    return 1000 * of_tiles[config.tile_m > 8] * config.warps // 4, 500


def _of_pair(config: PairConfig) -> Step:
    products = config.tile_m * config.tile_n * SIDE * (2 if config.mixes else 1)
    picoseconds = products * 1000 // _PRODUCTS_OF_SM[config.arch]
    return Step(SIDE, picoseconds // 2 * _SPARED_PERMILLE // 1000 if config.sms == 2 else picoseconds, 1000)
