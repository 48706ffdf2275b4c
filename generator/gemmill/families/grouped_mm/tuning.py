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
from gemmill.vocab import KernelSchedule

_PRODUCTS = 5474
"""Multiply-adds of 8-bit operands a nanosecond that the model gives one multiprocessor."""
_LOADED = 82
"""Bytes a nanosecond that one multiprocessor loads."""
_FIRST_PERMILLE = 3420
"""Of the time to load a stage, until the first has come."""
_BASIC_END_NS, _COOPERATIVE_END_NS, _PINGPONG_END_NS = 43, 29, 288
_END_OF_PAIR_NS, _PAIR_PERMILLE = 700, 900
"""Nanoseconds to end a tile, by schedule, and those of CTAs that share rows of A, with scales in groups; permille that steps of such CTAs
take where an expert has a whole band of tiles. There they gain 2 to 9 % from 4,096 along K on. Elsewhere they lose 1 %
(H200, 2026-11-23; docs/notes/grouped_mm.md)."""
_UNALIGNED_STEP, _UNALIGNED_STEP_PS, _UNALIGNED_END_NS = 128, 2_000_000, 3000
"""Columns along K, picoseconds for them of 8-bit operands, and nanoseconds to end a tile: assumptions. They are more than any other
kernel's, though few have smaller tiles. So the kernel is chosen only where no other takes the call."""
_GATHERED_STEP = 128
"""Columns along K of which `gathering_ns` tells the time."""
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
            tile_k=_UNALIGNED_STEP,
            tiles_together=1,
            step_ps=step_ps,
            step_of_band_ps=step_ps,
            bits=8 * size,
            end_ns=_UNALIGNED_END_NS,
            alone_permille=_NO_TWO_PERMILLE,
            first_ns=0,
        )
    if isinstance(config, PackedGroupedConfig):
        return _packed_facts(config)
    facts, k = KernelFacts(config), config.design.tile_shape_mnk[2]
    is_pair = config.group_size > 0 and facts.cluster_size > 1
    products = facts.tile_m * facts.tile_n * size * k // _PRODUCTS
    loaded = (facts.tile_m + facts.tile_n) * size * k // _LOADED
    gathered = gathering_ns(facts.tile_m) * size * k // _GATHERED_STEP if config.operands.indexed else 0
    step_ns = max(products, loaded, promoted_ns(facts, k)) + gathered
    ends = {KernelSchedule.BASIC: _BASIC_END_NS, KernelSchedule.COOPERATIVE: _COOPERATIVE_END_NS}
    return RowFacts(
        tile_m=facts.tile_m,
        tile_n=facts.tile_n,
        tile_k=k,
        tiles_together=facts.cluster_size,
        step_ps=1000 * step_ns,
        step_of_band_ps=(_PAIR_PERMILLE if is_pair else 1000) * step_ns,
        bits=8 * size,
        end_ns=_END_OF_PAIR_NS if is_pair else ends.get(config.design.kernel_schedule, _PINGPONG_END_NS),
        alone_permille=_NO_TWO_PERMILLE,
        first_ns=loaded * _FIRST_PERMILLE // 1000,
        n_multiple=_STORED,
    )


_PACKED_STEP = 128
"""Columns of a step."""
_PACKED_BLOCK_NS = {
    (8, 16): 163,
    (8, 32): 183,
    (8, 64): 207,
    (8, 128): 263,
    (16, 8): 115,
    (16, 16): 155,
    (16, 32): 212,
    (16, 64): 263,
    (16, 128): 389,
}
_PACKED_END_NS = {8: 1762, 16: 1168}
"""Nanoseconds to multiply by 64 x 128 packed weights, by the bits of an element of A and the rows of a tile; and to end a tile, which
CTAs of a multiprocessor do at once."""
_ALONE_PERMILLE = {8: 1568, 16: 1704}
"""Permille of a tile's time where its CTA has the multiprocessor alone, of kernels with room for two, by the bits of an element of A."""
_NO_TWO_PERMILLE = 1000


def _packed_facts(config: PackedGroupedConfig) -> RowFacts:
    blocks, of_a = config.tile_n // SIDE, config.dtype.bits
    step_ps = 1000 * blocks * _PACKED_BLOCK_NS[of_a, config.tile_m]
    return RowFacts(
        tile_m=config.tile_m,
        tile_n=config.tile_n,
        tile_k=_PACKED_STEP,
        tiles_together=1,
        step_ps=step_ps,
        step_of_band_ps=step_ps,
        bits=config.format.code.bits,
        end_ns=_PACKED_END_NS[of_a] // config.ctas_of_sm,
        alone_permille=_ALONE_PERMILLE[of_a] if config.ctas_of_sm > 1 else _NO_TWO_PERMILLE,
        first_ns=0,
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
