"""Many variants timed on one workload in little time: which few are worth a careful comparison, and times for the fit of a model.

Every variant's calls become one CUDA graph. Then each round enqueues all graphs in an order of its own and waits once, so the
device is never idle between them and clocks follow from the mixture's power. That tells variants apart by two or three per cent.
"""

import hashlib
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from gemmill.family import Row
from gemmill.numerics.measured import Operands
from gemmill.runtime.choosing import model_ns, rejection
from gemmill.runtime.variant_table import VariantTable
from gemmill.tuner.protocol import first_line
from gemmill.tuner.timing import BYTES_PER_S, FP8_FLOPS, shuffled
from gemmill.tuner.workloads import Workload
from harness.contenders import SM_COUNT

ROUND_US = 200.0
MOST_CALLS, FEWEST_CALLS = 12, 2
LEAD_CYCLES = 100_000
"""About 50 us, in which the host enqueues events and graph."""
LONG_US = 150.0
LONG_RATIO = 2.5
"""Calls that should take longer are timed with variants only that the model puts within so many times its best."""


@dataclass(frozen=True, kw_only=True)
class Sieve:
    """How variants are chosen and timed."""

    best: int | None = None
    """So many that the model puts first; None for all."""
    others: int = 0
    """So many of the rest, at random: the nearer the model puts them, the likelier."""
    rounds: int = 2
    seed: int = 0

    def __str__(self) -> str:
        if self.best is None:
            return f"all; above {LONG_US:g} us those within {LONG_RATIO} times the model's best"
        return f"the model's {self.best} best and {self.others} of the rest at random"


@dataclass(frozen=True, kw_only=True)
class Sieved:
    """The outcome."""

    rounds_us: Mapping[str, tuple[float, ...]]
    failures: Mapping[str, str]

    @property
    def us(self) -> dict[str, float]:
        """The least time of each, the fastest first."""
        least = {name: min(us) for name, us in self.rounds_us.items()}
        return dict(sorted(least.items(), key=lambda item: item[1]))


class Candidate(Protocol):
    """A variant, pinned."""

    name: str
    complete: bool

    def takes(self, workload: Workload) -> bool:
        """Whether it takes a workload."""
        ...

    def call(self, operands: Any, i: int) -> Callable[[], object]:
        """A call of one copy of operands with its arguments bound."""
        ...

    def pinned(self) -> AbstractContextManager:
        """The context of its calls."""
        ...


@dataclass(frozen=True, kw_only=True)
class Variants:
    """The loaded variants, pinned, and the model's inputs of each."""

    pinned: tuple[Candidate, ...]
    rows: Mapping[tuple[int, str], Row]
    """By class of calls and name; empty where no build is loaded: then the model has nothing to say."""
    guesses: Mapping[str, float] | None = None
    """The modelled times of one call's variants, where these are known without `rows`."""

    @classmethod
    def of(cls, pinned: Sequence[Candidate], table: VariantTable | None) -> "Variants":
        """Of a loaded build's table."""
        rows = {} if table is None else dict(zip(_keys(table), table.rows, strict=True))
        return cls(pinned=tuple(pinned), rows=rows)

    def guesses_us(self, workload: Workload) -> dict[str, float]:
        """The modelled times of the variants that take a workload."""
        if self.guesses is not None:
            return dict(self.guesses)
        names = [variant.name for variant in self.pinned if variant.takes(workload)]
        if not self.rows:
            return dict.fromkeys(names, 1.0)
        call = workload.call
        rows = {name: self.rows.get((call.call_class, name)) for name in names}
        taken = {name: row for name, row in rows.items() if row is not None and rejection(row, call) is None}
        return {name: model_ns(row, call, SM_COUNT) / 1e3 for name, row in taken.items()}


def _keys(table: VariantTable) -> list[tuple[int, str]]:
    return [(row.call_class, entry.name) for row, entry in zip(table.rows, table.entries, strict=True)]


class QuickTimer(Protocol):
    """Times many contenders together."""

    def rounds(self, variants: Sequence[Candidate], operands: Operands, count: int, rounds: int) -> Sieved:
        """Microseconds of a call of each, `count` calls and more a round."""
        ...


def chosen_for(guesses: Mapping[str, float], workload: Workload, sieve: Sieve) -> list[str]:
    """Names of the variants to time on a workload."""
    ranked = sorted(guesses, key=lambda name: (guesses[name], name))
    if sieve.best is None:
        limit = LONG_RATIO * guesses[ranked[0]] if ranked and guess_us(workload) > LONG_US else float("inf")
        return [name for name in ranked if guesses[name] <= limit]
    first, rest = ranked[: sieve.best], ranked[sieve.best :]
    generator = random.Random(f"{sieve.seed} {workload}")
    # Efraimidis and Spirakis 2006: the largest u ** (1 / weight) are a weighted sample.
    keys = {name: generator.random() ** ((guesses[name] / guesses[ranked[0]]) ** 2) for name in rest}
    return first + sorted(keys, key=keys.__getitem__, reverse=True)[: sieve.others]


def sieved(
    operands: Operands, variants: Variants, timer: QuickTimer, sieve: Sieve, also: Collection[str] = ()
) -> Sieved:
    """Time the variants chosen for a workload, and those named in `also` that take it."""
    workload = operands.workload
    guesses = variants.guesses_us(workload)
    names = {*chosen_for(guesses, workload, sieve), *(name for name in also if name in guesses)}
    count = max(FEWEST_CALLS, min(MOST_CALLS, int(ROUND_US / guess_us(workload))))
    return timer.rounds([v for v in variants.pinned if v.name in names], operands, count, sieve.rounds)


def guess_us(workload: Workload) -> float:
    """About how long a call takes."""
    return max(workload.flops * workload.operand_bits / 8 / FP8_FLOPS, workload.bytes / BYTES_PER_S) * 1e6 + 3.0


class QuickGraphs:
    """CUDA graphs, all of a workload's alive at a time; they share one pool of memory, since they run one after another."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()

    def rounds(self, variants: Sequence[Candidate], operands: Operands, count: int, rounds: int) -> Sieved:
        graphs: dict[str, tuple[torch.cuda.CUDAGraph, int]] = {}
        failures: dict[str, str] = {}
        pool = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            for variant in variants:
                calls = [variant.call(operands, i) for i in range(operands.copies)]
                try:
                    with variant.pinned():
                        calls[0]()  # A first call loads machine code, which a capture does not bear.
                        graphs[variant.name] = self._captured(calls, count, pool)
                except RuntimeError as error:
                    failures[variant.name] = first_line(error)
            times = [self._round(graphs, turn) for turn in range(rounds)]
        for graph, _ in graphs.values():
            graph.reset()
        return Sieved(rounds_us={name: tuple(us[name] for us in times) for name in graphs}, failures=failures)

    @staticmethod
    def _captured(
        calls: Sequence[Callable[[], object]], count: int, pool: tuple[int, int]
    ) -> tuple[torch.cuda.CUDAGraph, int]:
        turns = -(-count // len(calls))
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            for call in [*calls] * turns:
                call()
        finally:
            graph.capture_end()
        return graph, turns * len(calls)

    @staticmethod
    def _round(graphs: Mapping[str, tuple[torch.cuda.CUDAGraph, int]], turn: int) -> dict[str, float]:
        events = {}
        for name in shuffled(list(graphs), turn):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(LEAD_CYCLES)
            start.record()
            graphs[name][0].replay()
            end.record()
            events[name] = start, end
        torch.cuda.synchronize()
        return {name: start.elapsed_time(end) * 1e3 / graphs[name][1] for name, (start, end) in events.items()}


class QuickDry:
    """Makes each call once and invents its time from the variant's name: for machines without a GPU."""

    def rounds(self, variants: Sequence[Candidate], operands: Operands, count: int, rounds: int) -> Sieved:
        times: dict[str, tuple[float, ...]] = {}
        failures: dict[str, str] = {}
        for variant in variants:
            try:
                with variant.pinned():
                    variant.call(operands, 0)()
            except RuntimeError as error:
                failures[variant.name] = first_line(error)
                continue
            digest = int.from_bytes(hashlib.sha256(variant.name.encode()).digest()[:2], "big")
            times[variant.name] = tuple(10.0 + digest / 65536 + 0.001 * turn for turn in range(rounds))
        return Sieved(rounds_us=times, failures=failures)
