"""The choice among the gated GEMMs that take a call."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gemmill.families.gated_mm.classes import CLASSES, classes_of
from gemmill.families.gated_mm.config import (
    AnyConfig,
    GatedPartsConfig,
    UnalignedGatedConfig,
)
from gemmill.families.gated_mm.facts import Facts as KernelFacts
from gemmill.families.gated_mm.model import TALL, RowFacts, model_ns
from gemmill.families.gated_mm.order import order_of
from gemmill.family import Needs, Reach, Row
from gemmill.family.operand import MOST_OF_TMA, TMA_BYTES
from gemmill.gemm.expert_rows import gathering_ns
from gemmill.gemm.promotion import promoted_ns
from gemmill.vocab import DType, EpilogueKind

_STEP = 128
_PRODUCTS, _PRODUCTS_OF_EXPERTS = 5218, 5000
"""Multiply-adds a nanosecond that the model gives one multiprocessor: 4,930 to 5,060 at 4,096 rows of 28672 x 4096.

It is no limit of the hardware. The H200's peak of 1,979 TFLOP/s in dense e4m3 is 7,496 on each of 132 multiprocessors.
"""
_LOADED, _LOADED_BY_TALL, _LOADED_OF_EXPERTS = 97, 73, 75
"""Bytes a nanosecond that the model has one multiprocessor load: for tiles of fewer than 256 packed rows of weights, of so many, and of
experts. Tiles of 64 x 256 loaded 70 to 75 alone (H200, 2026-11-23)."""
_UNALIGNED_STEP_PS = 4_000_000
"""Picoseconds of a step, an assumption. It is more than any other kernel's step takes.

So this kernel is chosen only where no other takes the call.
"""


def _facts(config: AnyConfig) -> RowFacts:
    if isinstance(config, UnalignedGatedConfig):
        tile_m, tile_n, _ = config.tile_shape_mnk
        return RowFacts(tile_m=tile_m, tile_n=tile_n, ctas_of_sm=1, step_ps=_UNALIGNED_STEP_PS, overlaps=0, parts=0)
    if isinstance(config, GatedPartsConfig):
        return RowFacts(tile_m=0, tile_n=0, ctas_of_sm=0, step_ps=0, overlaps=0, parts=1)
    facts = KernelFacts(config)
    by_expert = config.operands.by_expert
    products = facts.tile_m * facts.tile_n * _STEP // (_PRODUCTS_OF_EXPERTS if by_expert else _PRODUCTS)
    of_sm = _LOADED_OF_EXPERTS if by_expert else _LOADED_BY_TALL if facts.tile_n >= TALL else _LOADED
    loaded = (facts.tile_m // facts.cluster_y + facts.tile_n // facts.cluster_x) * _STEP // of_sm
    gathered = gathering_ns(facts.tile_m) if config.operands.indexed else 0
    return RowFacts(
        tile_m=facts.tile_m,
        tile_n=facts.tile_n,
        ctas_of_sm=facts.ctas_of_sm,
        step_ps=1000 * (max(products, loaded, promoted_ns(facts, _STEP)) + gathered),
        overlaps=int(facts.pingpong),
        parts=0,
        cluster=1 if config.design.swap_ab else config.design.cluster_shape_mnk[0],
    )


def _rows(config: AnyConfig, kernel: int) -> Iterator[Row]:
    any_layout, facts = isinstance(config, UnalignedGatedConfig), _facts(config)
    for number in classes_of(config):
        yield Row(
            kernel=kernel,
            call_class=number,
            most=MOST_OF_TMA,
            alignments=(1 if any_layout else TMA_BYTES,) * 3,
            least=(0, 0, 0 if any_layout else 1, 0),
            facts=facts,
        )


def _needs(config: AnyConfig) -> Needs | None:
    """GEMMs of the same operands, where they make the product."""
    if not isinstance(config, GatedPartsConfig):
        return None
    x = config.operands
    needed: dict[str, Any] = {"operand_dtype": x.dtype, "out_dtype": DType.BF16, "group_size": x.group_size}
    if x.by_expert:
        return Needs(family="grouped_mm", config=needed | {"rows_scaled": False, "gathers": (False,), "biased": False})
    return Needs(family="scaled_mm", config=needed | {"epilogue": EpilogueKind.SCALED_BIAS, "arch": config.arch})


def _usual(number: int) -> dict[str, tuple[int, int, int]]:
    experts = (8, 384, 1) if dict(CLASSES.told(number))["by_expert"] else (0, 0, 1)
    return {"m": (1, 65536, 1), "n": (512, 40960, 128), "k": (512, 16384, 128), "experts": experts}


TUNING = replace(
    CLASSES.tuning,
    sizes=("m", "n", "k", "experts"),
    result=("m", "n"),
    aligned=("a", "b", "out"),
    near=("n", "k", "experts"),
    bucketed="m",
    reach=Reach(few=16, many=512, endless=4096, ratio=2, distance=0.1),
    rows=_rows,
    needs=_needs,
    order=order_of,
    model_ns=model_ns,
    usual=_usual,
    offers=lambda config: dict.fromkeys(classes_of(config), (config,)),
)
