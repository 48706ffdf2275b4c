"""How long steps of the kernels of packed weights take: fitted to times of an H200 (docs/notes/fp4_weights.md)."""

from gemmill.families.blockscaled.config import Group, WeightConfig
from gemmill.formats.layout import SIDE

_WARPS, _GROUPS = Group.WARP, Group.WARPGROUP
_STEPS = {
    (_WARPS, 64, 1, 8, 4, 1): (342, 618),
    (_WARPS, 64, 2, 8, 4, 1): (525, 916),
    (_WARPS, 64, 4, 8, 2, 1): (499, 864),
    (_WARPS, 32, 2, 8, 4, 1): (250, 800),
    (_WARPS, 32, 4, 8, 4, 1): (450, 900),
    (_WARPS, 64, 1, 16, 4, 1): (368, 824),
    (_WARPS, 64, 2, 16, 4, 1): (631, 961),
    (_WARPS, 32, 2, 16, 4, 1): (320, 850),
    (_WARPS, 32, 4, 16, 4, 1): (550, 900),
    (_WARPS, 32, 2, 32, 4, 1): (450, 900),
    (_WARPS, 32, 4, 32, 4, 1): (800, 900),
    (_GROUPS, 64, 2, 32, 1, 2): (387, 804),
    (_GROUPS, 64, 2, 32, 2, 2): (735, 1074),
    (_GROUPS, 64, 2, 64, 1, 2): (453, 879),
    (_GROUPS, 64, 2, 64, 2, 2): (906, 839),
    (_GROUPS, 64, 2, 96, 1, 2): (610, 1014),
    (_GROUPS, 64, 2, 128, 1, 2): (694, 512),
    (_GROUPS, 64, 2, 192, 1, 2): (989, 644),
    (_GROUPS, 64, 2, 256, 1, 2): (1260, 1021),
}
"""Group, rows, row groups, rows of A, groups along K, blocks of each: nanoseconds for a step of a CTA that has a multiprocessor
alone, and permille of them for each of two that share one."""
_BLOCK_NS, _TOKEN_NS, _SHARED = 80, 3, 850


def step_of(config: WeightConfig) -> tuple[int, int]:
    """Nanoseconds of a CTA alone, and permille of them for each of those that share a multiprocessor."""
    key = (config.group, config.rows, config.row_groups, config.tile_m, config.k_groups, config.blocks)
    if key in _STEPS:
        return _STEPS[key]
    blocks = config.tile_n * config.stage_columns // SIDE**2
    return blocks * (_BLOCK_NS + _TOKEN_NS * config.tile_m // 4), _SHARED
