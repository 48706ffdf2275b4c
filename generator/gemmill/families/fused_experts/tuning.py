"""How a call comes to one of the kernels that take it."""

from collections.abc import Iterator
from dataclasses import replace

from gemmill.families.fused_experts.classes import CLASSES
from gemmill.families.fused_experts.config import STREAMED_TILES, AnyConfig, PackedExpertsConfig
from gemmill.families.fused_experts.model import RowFacts, model_ns
from gemmill.families.fused_experts.order import order_of
from gemmill.family import Needs, Reach, Row
from gemmill.family.operand import MOST_OF_TMA, TMA_BYTES
from gemmill.formats.layout import SIDE

_TILE_PS = {8: 290, 16: 400, 32: 706}
"""Picoseconds for 1,024 bytes of weights, by a tile's rows.

Times of 256 and 1,024 tokens of Qwen3-30B-A3B gave them (H200, 2026-11-22; docs/notes/fused_experts.md).
"""
_STREAMED_TILE_PS = {8: 159, 16: 126, 32: 158, 64: 217}
"""The same of streamed weights, from times of the first product of 1,024 tokens (H200, 2026-11-23; docs/notes/fused_experts.md)."""
_GROUPS_OF_SM = 4
"""Groups of threads on different rows of weights, of all CTAs of a multiprocessor (kernels/fused_experts/persistent_upcast.cuh)."""
_BEGIN_NS, _SHARED_BEGIN_NS, _WARPS_BEGIN_NS = 12000, 10800, 17000
"""Nanoseconds of three launches of few tiles. Two CTAs share streamed tiles of 8 rows, so more multiprocessors read."""


def _tile_ps(config: AnyConfig) -> int:
    if isinstance(config, PackedExpertsConfig):
        return config.body.tile_ps.get(config.tile_tokens, 0)
    return (_STREAMED_TILE_PS if config.streamed else _TILE_PS)[config.tile_tokens]


def _begin_ns(config: AnyConfig) -> int:
    if isinstance(config, PackedExpertsConfig):
        return config.body.begin_ns
    if not config.streamed:
        return _WARPS_BEGIN_NS if config.group_size else _BEGIN_NS
    return _SHARED_BEGIN_NS if config.tile_tokens == STREAMED_TILES[0] else _BEGIN_NS


def _coding(config: AnyConfig) -> tuple[int, int]:
    """Picoseconds in which a warp codes an element of results, and the warps that code a tile's rows."""
    if not isinstance(config, PackedExpertsConfig) or not config.packing.is_coded:
        return 0, 1
    return config.body.code_ps.get(config.tile_tokens, 0), config.body.coders or config.tile_tokens


def _columns(config: AnyConfig) -> tuple[int, int, int, int]:
    """Of a boxed tile of dense weights: picoseconds of a column along K with eight rows and with all, rows of weights, CTAs of a
    multiprocessor. Else zeros."""
    if not isinstance(config, PackedExpertsConfig) or config.packing.sparse_group:
        return 0, 0, 0, 0
    few_ps, many_ps = config.body.column_ps.get(config.tile_tokens, (0, 0))
    groups = config.body.row_groups[config.tile_tokens]
    return (few_ps, many_ps, groups * SIDE, _GROUPS_OF_SM // groups) if many_ps else (0, 0, 0, 0)


def _rows(config: AnyConfig, kernel: int) -> Iterator[Row]:
    code_ps, coders = _coding(config)
    few_ps, many_ps, tile_n, ctas = _columns(config)
    yield Row(
        kernel=kernel,
        call_class=CLASSES.number(config),
        most=MOST_OF_TMA,
        alignments=(TMA_BYTES,) * 3,
        least=(0, 0, 0, 0),
        facts=RowFacts(
            tile_tokens=config.tile_tokens,
            bits=config.dtype.bits if config.format is None else config.format.code.bits,
            tile_ps=0 if config.apart else _tile_ps(config),
            begin_ns=0 if config.apart else _begin_ns(config),
            apart=int(config.apart),
            streamed=int(config.streamed),
            code_ps=code_ps,
            coders=coders,
            alone_ps=config.body.alone_ps.get(config.tile_tokens, 0) if isinstance(config, PackedExpertsConfig) else 0,
            few_ps=few_ps,
            many_ps=many_ps,
            tile_n=tile_n,
            ctas_of_sm=ctas,
        ),
    )


def _needs(config: AnyConfig) -> Needs | None:
    """Grouped GEMMs of the same operands, where they make both products."""
    if not config.apart:
        return None
    needed = {"operand_dtype": config.dtype, "out_dtype": config.out_dtype, "group_size": config.group_size}
    needed |= {"rows_scaled": False}
    return Needs(family="grouped_mm", config=needed | {"gathers": (False,), "biased": False})


TUNING = replace(
    CLASSES.tuning,
    sizes=("pairs", "inner", "hidden", "experts"),
    result=("pairs", "hidden"),
    aligned=("x", "w13", "w2"),
    near=("inner", "hidden", "experts"),
    bucketed="pairs",
    reach=Reach(few=8, many=512, endless=16384, ratio=2, distance=0.1),
    rows=_rows,
    needs=_needs,
    order=order_of,
    across={"pairs": (1, 8, 64, 512, 4096, 32768)},
    one_slice=1.0,
    model_ns=model_ns,
    usual=lambda number: {
        "pairs": (1, 65536, 1),
        "inner": (128, 8192, 128),
        "hidden": (1024, 8192, 128),
        "experts": (8, 384, 1),
    },
    offers=lambda config: {CLASSES.number(config): (config,)},
)
