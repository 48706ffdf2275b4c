"""The choice of how many slices an attention's tokens are dealt out in: a launch setting of its kernel."""

from collections.abc import Iterator
from dataclasses import replace

from gemmill.families.kv_cache.classes import CLASSES, class_of_config
from gemmill.families.kv_cache.config import COMMON_HEAD_DIM, MANY_ROWS, KernelKind, KvCacheConfig, Slots, offered_slots
from gemmill.families.kv_cache.model import RowFacts, model_ns
from gemmill.families.kv_cache.sweep import SWEEP
from gemmill.family import ALONE, Chunks, Order, Reach, Row
from gemmill.vocab import DType

_MOST = 2**62
"""The most of each size: kernels count in 64 bits, and a call's contract has the lower limits."""
_WORD = 1_000_000
_NARROW_PS = 330_000
"""Picoseconds of 64 tokens of 128 elements in 4 bits by eight rows: 42.6 us of 128 stages (H200, 2026-11-22)."""
_SUM_PS = 576_000
"""Picoseconds of a block that the sum of a group's slice takes: 35.7 us for 62 of 64 x 8K, held less free (H200, 2026-11-28, 1cc0c57f)."""
_SLOT_SUM_PS = 2_280_000
"""The same of slots: 70.7 us for 31."""
_LATENT_PS = 5_400_000
"""Picoseconds of 64 latents by 16 rows: 92.9 us for 16 stages of 128 blocks (H200, 2026-11-27, 3332e200)."""
_MANY_LATENT_PERMILLE = 2300
"""The permille of `_LATENT_PS` that 64 rows take, an estimate from clocks of shared memory."""
_LATENT_TILE_PS = {16: 1_630_000, 32: 1_720_000}
"""Picoseconds of 64 latents by WGMMA and so many rows: 49.3 and 51.7 us of 16 x 8K by 16 heads (H200, 2026-11-27, e2544502)."""
_STEP = 64
"""Tokens of which slices are multiples. Kernels that take more at a time serve other classes of calls, or other numbers of rows."""
_MOST_SHARE = 128
"""Elements of a vector that a warp takes of slots."""
_ROWS_PS = 1_540_000
"""Picoseconds that WGMMA takes of as many tokens by 128 rows: 13.5 ms for 4,096 rows over 69,632 tokens (H200, 2026-11-27, 3332e200)."""
_MANY_PERMILLE = 1600
"""The permille of `_NARROW_PS` that 16 rows take of eight warps."""
_TWELVE_PERMILLE = 1480
"""The same of twelve: 68.1 us for 73.5 of four rows at 8 x 16K (H200, 2026-11-27, 3332e200)."""


def _facts(config: KvCacheConfig) -> RowFacts:
    if not config.attends:
        return RowFacts()
    if config.kind is KernelKind.DECODE:
        return _facts_of_tiles(config) if config.tile_rows else _facts_of_pages(config)
    if config.kind is KernelKind.LATENT:
        return _facts_of_latents(config)
    return _facts_of_any(config) if config.operands.slots is Slots.ANY else _facts_of_slots(config)


def _facts_of_tiles(config: KvCacheConfig) -> RowFacts:
    is_many = config.tile_rows == MANY_ROWS
    stage = (_ROWS_PS if is_many else _NARROW_PS * _TWELVE_PERMILLE // 1000) * config.operands.head_dim // 128
    return RowFacts(
        half_waves=config.half_waves,
        most_few=2**31,
        few_rows=config.tile_rows,
        many_rows=config.tile_rows,
        few_tokens=64,
        many_tokens=64,
        heads=1,
        blocks_of_sm=1,
        few_ps=stage,
        many_ps=stage,
        start_ps=(8 if is_many else 4) * _WORD,
        slice_ps=125_000,
        slices=config.slices,
        sum_ps=0 if is_many else _SUM_PS,
        few_groups=3,
        many_groups=3,
    )


def _facts_of_pages(config: KvCacheConfig) -> RowFacts:
    most = 2**31 if config.operands.head_dim > 128 else 8
    elements = config.operands.head_dim + (config.operands.value_dim or config.operands.head_dim)
    stage = _NARROW_PS * elements // 256
    return RowFacts(
        half_waves=config.half_waves,
        most_few=most,
        few_rows=8,
        many_rows=16,
        few_tokens=64,
        many_tokens=64,
        heads=1,
        blocks_of_sm=1,
        few_ps=stage,
        many_ps=stage * _MANY_PERMILLE // 1000,
        start_ps=4 * _WORD,
        slice_ps=125_000,
        slices=config.slices,
        sum_ps=_SUM_PS,
        few_groups={192: 2, 256: 2, 512: 1}.get(config.operands.head_dim, 4),
        many_groups=2,
    )


def _facts_of_latents(config: KvCacheConfig) -> RowFacts:
    rows = config.tile_rows
    return RowFacts(
        half_waves=config.half_waves,
        most_few=16,
        few_rows=rows or 16,
        many_rows=rows or 64,
        few_tokens=64,
        many_tokens=64,
        heads=1,
        blocks_of_sm=1,
        few_ps=_LATENT_TILE_PS.get(rows, _LATENT_PS),
        many_ps=_LATENT_TILE_PS.get(rows, _LATENT_PS * _MANY_LATENT_PERMILLE // 1000),
        start_ps=4 * _WORD,
        slice_ps=125_000,
        slices=config.slices,
    )


def _facts_of_slots(config: KvCacheConfig) -> RowFacts:
    share = min(config.operands.head_dim, _MOST_SHARE)
    tokens, stage = 128 * share // config.operands.head_dim, 2 * _NARROW_PS * share // _MOST_SHARE
    return RowFacts(
        half_waves=config.half_waves,
        most_few=2**31,
        few_rows=8,
        many_rows=8,
        few_tokens=tokens,
        many_tokens=tokens,
        heads=tokens // 16,
        blocks_of_sm=1,
        few_ps=stage,
        many_ps=stage,
        start_ps=8 * _WORD,
        slice_ps=30_000,
        slices=config.slices,
        sum_ps=_SLOT_SUM_PS,
        few_groups=2,
        many_groups=2,
    )


def _facts_of_any(config: KvCacheConfig) -> RowFacts:
    return RowFacts(
        half_waves=config.half_waves,
        most_few=32,
        few_rows=16,
        many_rows=128,
        few_tokens=128,
        many_tokens=64,
        heads=1,
        blocks_of_sm=2,
        few_ps=15 * _WORD,
        many_ps=14 * _WORD,
        start_ps=30 * _WORD,
        slice_ps=125_000,
        slices=config.slices,
    )


def _rows(config: KvCacheConfig, kernel: int) -> Iterator[Row]:
    """A row of the config's own class. The kernel of any format has those of slots too that not every build has kernels for.

    A free choice passes over fixed slices where lengths deal tokens out: of ragged batches they took up to 1.31 times the time of
    kernels without (H200, 2026-11-28, 7fa53222, docs/notes/kv_cache.md), and the host knows no lengths.
    """
    x, served, facts = config.operands, [config], _facts(config)
    if config.kind is KernelKind.ATTEND and x.slots is Slots.ANY and x.head_dim != COMMON_HEAD_DIM:
        formats = (slots for slots in offered_slots(config.kind, x.head_dim) if slots is not Slots.ANY)
        served += [replace(config, operands=replace(x, slots=slots)) for slots in formats]
    for each in served:
        yield Row(
            kernel=kernel,
            call_class=class_of_config(each),
            most=_MOST,
            alignments=(),
            least=(0,) * len(_SIZES),
            facts=facts,
            held_only=facts.sum_ps > 0 and config.slices > 1,
        )


def _order(config: KvCacheConfig) -> Order | None:
    """The order of an attention with a fixed number of slices, each a share of that sequence's tokens. Otherwise slices follow
    from the batch, the page table's width and the device."""
    if not config.attends:
        return ALONE
    if not config.slices:
        return None
    is_latent_tile = config.kind is KernelKind.LATENT and config.tile_rows > 0
    step, joined = (_STEP, "float32, in the order of tokens") if config.slices > 1 else (0, "")
    return Order(
        instruction="wgmma" if config.tile_rows == MANY_ROWS or is_latent_tile else "mma.sync",
        accumulator=DType.F32,
        slices=config.slices,
        slice_step=step,
        joined=joined,
        loop=f"softmax of {config.tile_rows} rows" if config.tile_rows else "softmax",
    )


_SIZES = ("batch", "rows", "heads", "kv_heads", "length")
TUNING = replace(
    CLASSES.tuning,
    sizes=_SIZES,
    result=("batch", "rows", "heads"),
    near=("batch", "rows", "heads", "kv_heads"),
    bucketed="length",
    reach=Reach(few=0, many=65536, endless=1 << 20, ratio=2, distance=0.1),
    rows=_rows,
    order=_order,
    across={"batch": (1, 8, 64), "length": (1024, 8192, 65536)},
    chunks=Chunks("rows", most=32, whole=4096),
    one_slice=1.0,
    model_ns=model_ns,
    offers=lambda config: {class_of_config(config): (config,)},
    measured_as=SWEEP.measured_as,
    sweep=SWEEP,
)
