"""How a call comes to one of the kernels that take it."""

from collections.abc import Iterator

from gemmill.families.blockscaled.accepts import BlockScaledAccepts
from gemmill.families.blockscaled.classes import CLASSES
from gemmill.families.blockscaled.config import (
    AnyConfig,
    FewConfig,
    FoldedConfig,
    ManyConfig,
    Pair,
    PairConfig,
    Sharing,
    WeightConfig,
    WidenedConfig,
)
from gemmill.families.blockscaled.model import Facts, model_ns, refuses
from gemmill.families.blockscaled.steps import step_of
from gemmill.families.blockscaled.sweep import SWEEP, Op
from gemmill.family import ProblemCall, Reach, Row, Tuning
from gemmill.family.operand import MOST_OF_TMA, TMA_BYTES
from gemmill.formats.layout import SIDE
from gemmill.vocab import Arch, Format

# Predictions but for packed and folded weights: those of Blackwell are its data sheets'.
_WIDENED_PS = {64: 195_000, 128: 525_000}
"""For 64 columns of a tile of both operands, of a CTA alone."""
_WAITING_PERMILLE = 667
"""Of a step, for each of the CTAs that share a multiprocessor and hide one another's waits."""
_FOLDED_NS = {8: 145, 16: 150, 32: 165, 64: 195, 128: 265, 256: 295}
_FOLDED_GROUPED_NS = {8: 200, 16: 218, 32: 265, 64: 359, 128: 305}
"""For 64 columns of a tile of folded weights by its rows of A, of CTAs that share a multiprocessor, with scales of rows and of groups:
from times of an H200, 2026-11-22 (docs/notes/folded.md). Rows between take those of the next. Slices of K cost a twentieth."""
_DEEP_PS = 10_000
"""What two groups along K with all of a multiprocessor's memory spare."""
_SPARED_PERMILLE = 900
"""Of a tile that two multiprocessors share: each loads half of B."""
_PRODUCTS_OF_SM = {Arch.SM100A: 30_000, Arch.SM120A: 5_000}
"""Multiply-adds of 4-bit codes a nanosecond; of 8 bits half as many."""
_MEMORY = {Arch.SM90A: 4200, Arch.SM100A: 8000, Arch.SM120A: 1800}
"""Bytes a nanosecond."""


def _bits(format: Format) -> int:
    """Sixteenths of a bit."""
    return int(128 * format.bytes_per_value)


def _a_bits(pair: Pair) -> int:
    return 16 * pair.a_bits if pair.a_format is None else _bits(pair.a_format)


def _of_weights(config: WeightConfig) -> Facts:
    step_ns, shared_permille = step_of(config)
    return Facts(
        splits=config.splits,
        tile_m=config.tile_m,
        tile_n=config.tile_n,
        sms=1,
        ctas_of_sm=config.ctas_of_sm,
        step_columns=config.stage_columns,
        step_ps=1000 * step_ns,
        shared_permille=shared_permille,
        a_bits=_a_bits(config.pair),
        b_bits=_bits(config.pair.b_format),
        memory=_MEMORY[config.arch],
        k_multiple=1,
    )


def _of_folded(config: FoldedConfig) -> Facts:
    known = _FOLDED_GROUPED_NS if config.grouped else _FOLDED_NS
    deep = config.k_groups > config.ctas_of_sm
    nanoseconds = next((ns for tile, ns in known.items() if tile >= config.tile_m), max(known.values()))
    shared_ps = 1000 * nanoseconds * (105 if config.splits > 1 else 100) // 100 - (_DEEP_PS if deep else 0)
    waits = config.k_groups == 1
    return Facts(
        splits=config.splits,
        tile_m=config.tile_m,
        tile_n=2 * SIDE,
        sms=1,
        ctas_of_sm=config.ctas_of_sm,
        step_columns=SIDE,
        step_ps=shared_ps * 3 // 2 if waits else shared_ps,
        shared_permille=_WAITING_PERMILLE if waits else 1000,
        a_bits=_a_bits(config.pair),
        b_bits=_bits(config.pair.b_format),
        memory=_MEMORY[config.arch],
        k_multiple=1,
    )


def _of_widened(config: WidenedConfig) -> Facts:
    return Facts(
        splits=1,
        tile_m=config.tile,
        tile_n=config.tile,
        sms=1,
        ctas_of_sm=config.ctas_of_sm,
        step_columns=SIDE,
        step_ps=_WIDENED_PS[config.tile],
        shared_permille=_WAITING_PERMILLE,
        a_bits=_a_bits(config.pair),
        b_bits=_bits(config.pair.b_format),
        memory=_MEMORY[config.arch],
        k_multiple=1,
    )


def _of_few(config: FewConfig) -> Facts:
    step_ns, shared_permille = step_of(config)
    return Facts(
        splits=config.splits,
        tile_m=config.tile_m,
        tile_n=SIDE,
        sms=1,
        ctas_of_sm=config.ctas_of_sm,
        step_columns=128 * config.warps,
        step_ps=1000 * step_ns,
        shared_permille=shared_permille,
        a_bits=_a_bits(config.pair),
        b_bits=_bits(config.pair.b_format),
        memory=_MEMORY[config.arch],
        k_multiple=32,
    )


def _of_many(config: ManyConfig) -> Facts:
    step_ns, shared_permille = step_of(config)
    return Facts(
        splits=config.splits,
        tile_m=config.tile_m,
        tile_n=config.tile_n,
        sms=1,
        ctas_of_sm=config.ctas_of_sm,
        step_columns=SIDE,
        step_ps=1000 * step_ns,
        shared_permille=shared_permille,
        a_bits=_a_bits(config.pair),
        b_bits=_bits(config.pair.b_format),
        memory=_MEMORY[config.arch],
        k_multiple=32,
    )


def _of_pair(config: PairConfig) -> Facts:
    m, n, _ = config.tile_shape_mnk
    shared = config.sharing is Sharing.TWO_SM
    picoseconds = m * n * SIDE * (2 if config.mixes else 1) * 1000 // _PRODUCTS_OF_SM[config.arch]
    return Facts(
        splits=1,
        tile_m=m,
        tile_n=n,
        sms=2 if shared else 1,
        ctas_of_sm=1,
        step_columns=SIDE,
        shared_permille=1000,
        step_ps=picoseconds // 2 * _SPARED_PERMILLE // 1000 if shared else picoseconds,
        a_bits=_a_bits(config.pair),
        b_bits=_bits(config.pair.b_format),
        memory=_MEMORY[config.arch],
        k_multiple=config.k_multiple,
    )


def _facts(config: AnyConfig) -> Facts:
    match config:
        case WeightConfig():
            return _of_weights(config)
        case FoldedConfig():
            return _of_folded(config)
        case WidenedConfig():
            return _of_widened(config)
        case FewConfig():
            return _of_few(config)
        case ManyConfig():
            return _of_many(config)
        case PairConfig():
            return _of_pair(config)


_ALIGNMENTS = {
    WeightConfig.tag: (TMA_BYTES, TMA_BYTES, 1),
    FoldedConfig.tag: (TMA_BYTES, TMA_BYTES, 1),
    WidenedConfig.tag: (8, 8, 1),
    ManyConfig.tag: (TMA_BYTES, TMA_BYTES, 1),
    FewConfig.tag: (TMA_BYTES, TMA_BYTES, 1),
    PairConfig.tag: (TMA_BYTES, TMA_BYTES, TMA_BYTES),
}
_LEAST_K = {WidenedConfig.tag: 0}
"""Where it is not 1: a descriptor of no columns cannot be made."""


def _rows(config: AnyConfig, accepts: BlockScaledAccepts, kernel: int) -> Iterator[Row]:
    yield Row(
        kernel=kernel,
        problem=CLASSES.number(config),
        most=MOST_OF_TMA,
        alignments=_ALIGNMENTS[config.tag],
        least=(0, 0, _LEAST_K.get(config.tag, 1)),
        facts=_facts(config),
    )


_MEASURED = {op.number: op.value for op in Op}


def _measured_as(call: ProblemCall) -> str | None:
    """The class by which tables know a call."""
    return _MEASURED.get(call.problem)


TUNING = Tuning(
    sizes=("m", "n", "k"),
    result=("m", "n"),
    aligned=("a", "b", "out"),
    near=("n", "k"),
    bucketed="m",
    reach=Reach(few=8, many=512, endless=4096, ratio=2, distance=0.1),
    rows=_rows,
    describe=CLASSES.tuning.describe,
    differs=CLASSES.tuning.differs,
    refuses=refuses,
    model_ns=model_ns,
    offers=lambda config: {CLASSES.number(config): (config,)},
    measured_as=_measured_as,
    sweep=SWEEP,
)
