"""The choice among the sparse GEMMs that take a call."""

from collections.abc import Iterator
from dataclasses import replace

from gemmill.families.sparse_mm.classes import CLASSES, classes_of
from gemmill.families.sparse_mm.config import SparseConfig
from gemmill.families.sparse_mm.memory import stage_bytes, stage_room
from gemmill.families.sparse_mm.model import RowFacts, model_ns
from gemmill.family import Reach, Row
from gemmill.family.operand import MOST_OF_TMA, TMA_BYTES
from gemmill.gemm.order import order_of_loop
from gemmill.vocab import KernelSchedule, RasterOrder, TileScheduler

_RASTER_CODES = {RasterOrder.HEURISTIC: 0, RasterOrder.ALONG_M: 1, RasterOrder.ALONG_N: 2}
_PRODUCTS = 9727
"""Multiply-adds a nanosecond of one multiprocessor, of 8-bit elements, those with zeros counted.

The H200's peak of 3,958 TFLOP/s in sparse e4m3 is 14,992 on each of 132 multiprocessors.
"""
_LOADED = 68
"""Bytes that one multiprocessor loads in a nanosecond."""
_BASIC_TILE_NS, _TILE_NS, _HIDING_TILE_NS, _TURN_NS = 656, 2698, 1144, 3079
"""Nanoseconds of a tile's epilogue: of one group of warps with small tiles, of two, of two by turns, where the other tile's main loop
hides a part, and of either of these, which begins no other tile before its end (docs/notes/sparse_mm.md)."""

_JOIN_NS, _JOINED = 7880, 7.55
"""Nanoseconds in which CTAs of stream-K wait for each other, and bytes of their sums in a nanosecond."""


def _facts(c: SparseConfig) -> RowFacts:
    bits = c.operand_dtype.bits
    tile_n, tile_m, tile_k = c.design.tile_shape_mnk
    cluster_n, cluster_m, _ = c.design.cluster_shape_mnk
    products = tile_m * tile_n * tile_k * bits // 8
    # CTAs along N share tiles of a, those along M tiles of weights; the next CTA's loads pass by the same L2.
    loaded = (tile_m // cluster_n * bits + tile_n // cluster_m * (bits // 2 + 1)) * tile_k // 8
    ends = {KernelSchedule.BASIC: _BASIC_TILE_NS, KernelSchedule.PINGPONG: _HIDING_TILE_NS}
    joins = c.design.tile_scheduler is TileScheduler.STREAM_K
    return RowFacts(
        raster_order=_RASTER_CODES[c.raster_order],
        swizzle=c.swizzle,
        tile_m=tile_m,
        tile_n=tile_n,
        cluster_m=cluster_m,
        cluster_n=cluster_n,
        tile_k=tile_k,
        step_ps=1000 * max(products // _PRODUCTS, loaded // _LOADED),
        tile_ns=ends.get(c.design.kernel_schedule, _TILE_NS),
        bits=bits,
        join_ns=round(_JOIN_NS + 4 * tile_m * tile_n / _JOINED) if joins else 0,
        ctas_of_sm=_ctas_of_sm(c),
        turn_ns=_TURN_NS if c.design.kernel_schedule is KernelSchedule.PINGPONG else 0,
    )


def _ctas_of_sm(c: SparseConfig) -> int:
    """As many as shared memory has room for. Persistent kernels have one, and those that fill it with their stages."""
    if c.design.kernel_schedule is not KernelSchedule.BASIC or c.design.stages is None:
        return 1
    memory = c.arch.shared_memory_bytes
    return max(1, memory // (c.design.stages * stage_bytes(c) + memory - stage_room(c)))


def _rows(config: SparseConfig, kernel: int) -> Iterator[Row]:
    facts = _facts(config)
    for number in classes_of(config):
        yield Row(
            kernel=kernel,
            call_class=number,
            most=MOST_OF_TMA,
            alignments=(TMA_BYTES,) * 4,
            least=(0, 0, 1),
            facts=facts,
        )


TUNING = replace(
    CLASSES.tuning,
    sizes=("m", "n", "k"),
    result=("m", "n"),
    aligned=("a", "bt_nzs", "bt_meta", "out"),
    near=("n", "k"),
    bucketed="m",
    reach=Reach(few=16, many=512, endless=4096, ratio=2, distance=0.1),
    rows=_rows,
    order=lambda config: order_of_loop(config.operand_dtype, config.design, instruction="wgmma.sp"),
    model_ns=model_ns,
    usual=lambda number: {"m": (1, 8192, 1), "n": (512, 40960, 128), "k": (512, 40960, 128)},
    offers=lambda config: dict.fromkeys(classes_of(config), (config,)),
)
