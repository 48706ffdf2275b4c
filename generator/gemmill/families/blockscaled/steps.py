"""How long steps of kernels take that the model is fitted to: times of an H200 (docs/notes/fp4_weights.md)."""

from gemmill.families.blockscaled.config import FewConfig, Group, ManyConfig, WeightConfig
from gemmill.formats.layout import SIDE

_OF_WARPS = {
    (1, 8, 4, 1, 5): (321, 639),
    (1, 8, 4, 1, 8): (292, 892),
    (2, 8, 4, 1, 5): (485, 933),
    (4, 8, 4, 1, 5): (876, 937),
    (1, 16, 4, 1, 5): (362, 806),
    (2, 16, 4, 1, 4): (604, 973),
}
"""Groups on different rows of weights, rows of A, groups along K, blocks of each, stages: nanoseconds for a stage of a CTA that has
a multiprocessor alone, and permille of them for each of two that share one."""
_OF_WARPGROUPS = {
    (2, 32, 1, 2, 6): (358, 821),
    (2, 32, 2, 2, 5): (716, 1161),
    (2, 64, 1, 2, 4): (440, 864),
    (2, 64, 2, 2, 4): (879, 594),
    (2, 96, 1, 2, 5): (587, 821),
    (2, 128, 1, 2, 5): (682, 632),
    (2, 192, 1, 2, 3): (973, 903),
    (2, 256, 1, 2, 3): (1210, 775),
}
_OF_FEW = {(8, 4): (754, 1027), (8, 8): (1507, 1200), (16, 4): (1912, 507), (16, 8): (2820, 687)}
"""Rows of A, warps: for 128 columns of each warp."""
_OF_MANY = {(64, 256): (1119, 729), (128, 256): (1575, 607)}
"""Rows of A, rows of B: for 64 columns."""
_BLOCK_NS, _TOKEN_NS, _SHARED = 80, 3, 850
"""Of what was not measured."""


def step_of(config: WeightConfig | FewConfig | ManyConfig) -> tuple[int, int]:
    """Nanoseconds of a CTA alone, and permille of them for each of those that share a multiprocessor."""
    match config:
        case FewConfig():
            return _OF_FEW[config.tile_m, config.warps]
        case ManyConfig():
            return _OF_MANY.get((config.tile_m, config.tile_n), (config.tile_m * config.tile_n // 20, 700))
    key = (config.row_groups, config.tile_m, config.k_groups, config.blocks, config.stages)
    steps = _OF_WARPS if config.group is Group.WARP else _OF_WARPGROUPS
    blocks = config.tile_n * config.stage_columns // SIDE**2
    return steps.get(key, (blocks * (_BLOCK_NS + _TOKEN_NS * config.tile_m // 4), _SHARED))
