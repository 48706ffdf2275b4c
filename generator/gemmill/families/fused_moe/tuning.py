"""How a call comes to one of the kernels that take it."""

from collections.abc import Iterator

from gemmill.families.fused_moe.accepts import ExpertsAccepts
from gemmill.families.fused_moe.classes import CLASSES
from gemmill.families.fused_moe.config import ExpertsConfig
from gemmill.families.fused_moe.model import Facts, model_ns
from gemmill.family import Reach, Row, Tuning
from gemmill.family.operand import MOST_OF_TMA, TMA_BYTES

_TILE_PS = {8: 290, 16: 400, 32: 706}
"""Of 1,024 bytes of weights by a tile's rows: from times of 256 and 1,024 tokens of Qwen3-30B-A3B (H200, 2026-11-22;
docs/notes/experts.md)."""


def _rows(config: ExpertsConfig, _accepts: ExpertsAccepts, kernel: int) -> Iterator[Row]:
    yield Row(
        kernel=kernel,
        problem=CLASSES.number(config),
        most=MOST_OF_TMA,
        alignments=(TMA_BYTES,) * 3,
        least=(0, 0, 0, 0),
        facts=Facts(
            tile_tokens=config.tile_tokens,
            bytes_of_element=config.dtype.bits // 8,
            tile_ps=_TILE_PS[config.tile_tokens],
        ),
    )


TUNING = Tuning(
    sizes=("pairs", "inner", "hidden", "experts"),
    result=("pairs", "hidden"),
    aligned=("x", "w13", "w2"),
    near=("inner", "hidden", "experts"),
    bucketed="pairs",
    reach=Reach(few=8, many=512, endless=16384, ratio=2, distance=0.1),
    rows=_rows,
    describe=CLASSES.tuning.describe,
    differs=CLASSES.tuning.differs,
    model_ns=model_ns,
    offers=lambda config: {CLASSES.number(config): (config,)},
)
