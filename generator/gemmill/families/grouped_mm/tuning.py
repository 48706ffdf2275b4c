"""How a call comes to one of the kernels that take it."""

from collections.abc import Iterator
from dataclasses import replace

from gemmill.families.grouped_mm.classes import CLASSES, classes_of
from gemmill.families.grouped_mm.config import AnyConfig, PackedGroupedConfig, UnalignedGroupedConfig
from gemmill.families.grouped_mm.facts import Facts as KernelFacts
from gemmill.families.grouped_mm.model import RowFacts, model_ns, refuses
from gemmill.families.grouped_mm.order import order_of
from gemmill.families.grouped_mm.sweep import SWEEP
from gemmill.family import Reach, Row
from gemmill.family.operand import MOST_OF_TMA, TMA_BYTES
from gemmill.formats.layout import SIDE
from gemmill.gemm.expert_rows import gathering_ns
from gemmill.gemm.promotion import promoted_ns

_STEP = 128
_PRODUCTS, _PRODUCTS_OF_WIDE, _WIDE = 10000, 9000, 192
"""Multiply-adds of 8-bit operands a nanosecond that the model gives one multiprocessor: with most tiles, and with tiles of 192 columns.
Fewer of the latter fill a wave, and more of it is lost."""
_LOADED = 200
"""Bytes a nanosecond that one multiprocessor loads. By this and `_PRODUCTS` the choice is 1.7 % slower than the fastest
variant in the mean of 30 points. At worst it is 10 % slower (H200, 2026-11-22; docs/notes/grouped_mm.md)."""
_END_NS, _END_OF_PAIR_NS, _PAIR_PERMILLE = 1200, 1800, 900
"""Nanoseconds to end a tile, and those of CTAs that share rows of A, with scales in groups; permille that steps of such CTAs
take where an expert has a whole band of tiles. There they gain 2 to 9 % from 4,096 along K on. Elsewhere they lose 1 %
(H200, 2026-11-23; docs/notes/grouped_mm.md)."""
_UNALIGNED_STEP_PS = 2_000_000
"""Picoseconds of a step of 8-bit operands: an assumption. It is more than any other kernel's step takes, though few have
smaller tiles. So the kernel is chosen only where no other takes the call."""
_STORED = 8
"""Results that fill 16 bytes."""


def _facts(config: AnyConfig) -> RowFacts:
    size = config.operand_dtype.bits // 8
    if isinstance(config, UnalignedGroupedConfig):
        tile_m, tile_n, _ = config.tile_shape_mnk
        step_ps = _UNALIGNED_STEP_PS * size
        return RowFacts(
            tile_m=tile_m,
            tile_n=tile_n,
            tiles_together=1,
            ctas_of_sm=1,
            step_ps=step_ps,
            step_of_band_ps=step_ps,
            bits=8 * size,
            end_ns=_END_NS,
        )
    if isinstance(config, PackedGroupedConfig):
        return _packed_facts(config)
    facts = KernelFacts(config)
    products = facts.tile_m * facts.tile_n * size * _STEP // (_PRODUCTS_OF_WIDE if facts.tile_n == _WIDE else _PRODUCTS)
    loaded = (facts.tile_m + facts.tile_n) * size * _STEP // _LOADED
    gathered = gathering_ns(facts.tile_m) * size if config.operands.indexed else 0
    is_pair, step_ns = (
        config.group_size > 0 and facts.cluster_size > 1,
        max(products, loaded, promoted_ns(facts, _STEP)) + gathered,
    )
    return RowFacts(
        tile_m=facts.tile_m,
        tile_n=facts.tile_n,
        tiles_together=facts.cluster_size,
        ctas_of_sm=facts.ctas_of_sm,
        step_ps=1000 * step_ns,
        step_of_band_ps=(_PAIR_PERMILLE if is_pair else 1000) * step_ns,
        bits=8 * size,
        end_ns=_END_OF_PAIR_NS if is_pair else _END_NS,
        n_multiple=_STORED,
    )


_PACKED_BLOCK_NS, _PACKED_ROW_PS, _PACKED_END_NS = 120, 2400, 1500
"""Nanoseconds to make operands of 64 x 128 packed weights, picoseconds for each row of A, and nanoseconds to end a tile. They
are predictions."""


def _packed_facts(config: PackedGroupedConfig) -> RowFacts:
    blocks = config.tile_n // SIDE
    by_row = _PACKED_ROW_PS * config.tile_m * config.dtype.bits // 16
    step_ps = blocks * (1000 * _PACKED_BLOCK_NS + by_row)
    return RowFacts(
        tile_m=config.tile_m,
        tile_n=config.tile_n,
        tiles_together=1,
        ctas_of_sm=config.ctas_of_sm,
        step_ps=step_ps,
        step_of_band_ps=step_ps,
        bits=config.format.code.bits,
        end_ns=_PACKED_END_NS,
    )


def _rows(config: AnyConfig, kernel: int) -> Iterator[Row]:
    any_layout, facts = isinstance(config, UnalignedGroupedConfig), _facts(config)
    of_out = 1 if isinstance(config, PackedGroupedConfig) else TMA_BYTES
    for number in classes_of(config):
        yield Row(
            kernel=kernel,
            call_class=number,
            most=MOST_OF_TMA,
            alignments=(1, 1, 1) if any_layout else (TMA_BYTES, TMA_BYTES, of_out),
            least=(0, 0, 0 if any_layout else 1, 0),
            facts=facts,
        )


TUNING = replace(
    CLASSES.tuning,
    sizes=("m", "n", "k", "experts"),
    result=("m", "n"),
    aligned=("a", "b", "out"),
    near=("n", "k", "experts"),
    bucketed="m",
    reach=Reach(few=8, many=512, endless=16384, ratio=2, distance=0.1),
    rows=_rows,
    order=order_of,
    refuses=refuses,
    model_ns=model_ns,
    usual=lambda number: {"m": (1, 65536, 1), "n": (256, 16384, 128), "k": (256, 16384, 128), "experts": (8, 384, 1)},
    offers=lambda config: dict.fromkeys(classes_of(config), (config,)),
    measured_as=SWEEP.measured_as,
    sweep=SWEEP,
)
