"""How a call comes to one of the kernels that take it."""

from collections.abc import Iterator

from gemmill.families.fused_moe.accepts import ExpertsAccepts
from gemmill.families.fused_moe.classes import CLASSES
from gemmill.families.fused_moe.config import ExpertsConfig
from gemmill.families.fused_moe.model import Facts, model_ns
from gemmill.family import Reach, Row, Tuning
from gemmill.family.operand import MOST_OF_TMA, TMA_BYTES

_WEIGHTS_PS, _ROW_PS = 180, 9
"""An assumption, of 1,024 bytes of weights: what reading them from L2 takes, and what each row of a tile adds."""


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
            tile_ps=_WEIGHTS_PS + _ROW_PS * config.tile_tokens,
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
