"""How a call comes to one of the kernels that take it."""

from collections.abc import Iterator

from gemmill.families.gated_mm.accepts import GatedAccepts
from gemmill.families.gated_mm.classes import CLASSES
from gemmill.families.gated_mm.config import GatedConfig
from gemmill.families.gated_mm.facts import Facts as KernelFacts
from gemmill.families.gated_mm.model import Facts, model_ns
from gemmill.family import Reach, Row, Tuning
from gemmill.family.operand import MOST_OF_TMA, TMA_BYTES

_STEP = 128
_PRODUCTS = 10000
"""Multiply-adds a nanosecond of one tensor core."""
_LOADED = 200
"""Bytes a nanosecond that one multiprocessor loads; both as grouped GEMMs have them."""


def _facts(config: GatedConfig) -> Facts:
    facts = KernelFacts(config)
    products = facts.tile_m * facts.tile_n * _STEP // _PRODUCTS
    loaded = (facts.tile_m // facts.cluster_y + facts.tile_n // facts.cluster_x) * _STEP // _LOADED
    return Facts(
        tile_m=facts.tile_m,
        tile_n=facts.tile_n,
        ctas_of_sm=facts.ctas_of_sm,
        step_ps=1000 * max(products, loaded),
    )


def _rows(config: GatedConfig, accepts: GatedAccepts, kernel: int) -> Iterator[Row]:
    yield Row(
        kernel=kernel,
        problem=CLASSES.number(config),
        most=MOST_OF_TMA,
        alignments=(TMA_BYTES, TMA_BYTES, TMA_BYTES),
        least=(0, 0, 1),
        facts=_facts(config),
    )


TUNING = Tuning(
    sizes=("m", "n", "k"),
    result=("m", "n"),
    aligned=("a", "b", "out"),
    near=("n", "k"),
    bucketed="m",
    reach=Reach(few=16, many=512, endless=4096, ratio=2, distance=0.1),
    rows=_rows,
    describe=CLASSES.tuning.describe,
    differs=CLASSES.tuning.differs,
    model_ns=model_ns,
    offers=lambda config: {CLASSES.number(config): (config,)},
)
