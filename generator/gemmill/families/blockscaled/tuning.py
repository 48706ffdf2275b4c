"""How a call comes to one of the kernels that take it."""

from collections.abc import Iterator
from dataclasses import replace

from gemmill.families.blockscaled.classes import CLASSES
from gemmill.families.blockscaled.config import AnyConfig, FewConfig, ManyConfig, PairConfig
from gemmill.families.blockscaled.design import FewLoop, ManyLoop
from gemmill.families.blockscaled.model import RowFacts, model_ns, refuses
from gemmill.families.blockscaled.order import order_of
from gemmill.families.blockscaled.pairs import CODE_PAIRS, SPREAD_PAIRS
from gemmill.families.blockscaled.shaped_call import SPREAD_BYTES
from gemmill.families.blockscaled.steps import left_permille_of, step_of
from gemmill.families.blockscaled.sweep import SWEEP
from gemmill.family import Reach, Row
from gemmill.family.operand import MOST_OF_TMA, TMA_BYTES
from gemmill.vocab import Arch, Format

_MEMORY = {Arch.SM90A: 4200, Arch.SM100A: 8000, Arch.SM120F: 1800}
"""Bytes that memory reads in a nanosecond."""


def _bits(format: Format) -> int:
    """Sixteenths of a bit that a value takes, with its part of a scale."""
    return int(128 * format.bytes_per_value)


def _facts(config: AnyConfig) -> RowFacts:
    pair, step = config.pair, step_of(config)
    return RowFacts(
        splits=config.splits,
        tile_m=config.design.tile_mn[0],
        tile_n=config.design.tile_mn[1],
        sms=config.sms,
        ctas_of_sm=config.ctas_of_sm,
        step_columns=step.columns,
        step_ps=step.picoseconds,
        shared_permille=step.shared_permille,
        left_permille=left_permille_of(config),
        a_bits=16 * pair.a_bits if pair.a_format is None else _bits(pair.a_format),
        b_bits=_bits(pair.b_format),
        memory=_MEMORY[config.arch],
        k_multiple=config.k_multiple,
    )


_COPIED_SCALES, _LOADED_COLUMNS = 4, 32
"""Bytes of scales that a thread of skinny_cp_async_mm.cuh copies at once, and columns whose scales other kernels load at once."""


def _alignments(config: AnyConfig) -> tuple[int, int, int, int]:
    """Of rows of A, of B and of the result, and of swizzled scales that a kernel reads at once. Other scales are bytes, or lie
    behind their codes."""
    of_group = _LOADED_COLUMNS // config.group_size
    match config:
        case PairConfig():
            return TMA_BYTES, SPREAD_BYTES if config.pair in SPREAD_PAIRS else TMA_BYTES, TMA_BYTES, TMA_BYTES
        case FewConfig() if config.design.main_loop is FewLoop.REGISTERS:
            return (TMA_BYTES, TMA_BYTES, 1, of_group) if config.in_words else (8, 8, 1, 1)
        case FewConfig() if config.pair in CODE_PAIRS:
            return TMA_BYTES, TMA_BYTES, 1, _COPIED_SCALES
        case ManyConfig():
            return (8, 8, 1, 1) if _is_of_pieces(config) else (TMA_BYTES, TMA_BYTES, 1, of_group)
    return TMA_BYTES, TMA_BYTES, 1, 1


def _is_of_pieces(config: AnyConfig) -> bool:
    return isinstance(config, ManyConfig) and config.design.main_loop is ManyLoop.PIECES


def _rows(config: AnyConfig, kernel: int) -> Iterator[Row]:
    yield Row(
        kernel=kernel,
        call_class=CLASSES.number(config),
        most=MOST_OF_TMA,
        alignments=_alignments(config),
        # a descriptor of no columns cannot be made
        least=(0, 0, 0 if _is_of_pieces(config) else 1),
        facts=_facts(config),
    )


TUNING = replace(
    CLASSES.tuning,
    sizes=("m", "n", "k"),
    result=("m", "n"),
    aligned=("a", "b", "out", "scales"),
    near=("n", "k"),
    bucketed="m",
    reach=Reach(few=8, many=512, endless=4096, ratio=2, distance=0.1, margin=1.02),
    rows=_rows,
    order=order_of,
    refuses=refuses,
    model_ns=model_ns,
    usual=lambda number: {"m": (1, 8192, 1), "n": (512, 40960, 128), "k": (512, 40960, 128)},
    offers=lambda config: {CLASSES.number(config): (config,)},
    measured_as=SWEEP.measured_as,
    sweep=SWEEP,
)
