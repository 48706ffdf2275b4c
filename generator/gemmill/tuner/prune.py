"""The fewest compiled kernels that come within a share of the best at every measured shape, and the losses of a model's
shapes.
"""

import lzma
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from gemmill.family import Config, Sweep
from gemmill.registry import REGISTRY
from gemmill.runtime.choosing import Trust
from gemmill.runtime.select import Choice, select
from gemmill.runtime.table_file import TunedTable
from gemmill.space.names import parse_name, to_name
from gemmill.space.selections import Selection
from gemmill.tuner.candidates import BuildFacts
from gemmill.tuner.cover import fewest, modelled
from gemmill.tuner.record import Record
from gemmill.tuner.sweep import runs_of, variants_only
from gemmill.tuner.workloads import Workload, workload_of
from gemmill.typed_json import from_json

Times = dict[Workload, dict[str, float]]
"""Microseconds by workload and variant."""


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """A set of variants that suffices."""

    variants: tuple[str, ...]
    """The best variant of each workload, once. It leaves out launch settings that no workload wants."""
    kernels: tuple[str, ...]
    """The compiled kernels behind them."""
    losses: Mapping[Workload, float]
    """The share by which the best of the set is behind the best of all."""


def times_of(record: Record, repeats: int = 1) -> Times:
    """The best time of each variant in any run, also where a stage dropped it."""
    times: Times = {}
    for workload, entries in runs_of(record, repeats).items():
        known = times.setdefault(workload, {})
        for entry in entries:
            for name, us in variants_only(entry.outcome.rounds_us).items():
                if us:
                    known[name] = min(known.get(name, math.inf), sorted(us)[len(us) // 2])
    return {workload: us for workload, us in times.items() if us}


class _DrawnShape(TypedDict):
    """A shape that benchmarks/judge.py drew."""

    op: str
    m: int
    n: int
    k: int
    sieved_us: dict[str, float]


class _Drawn(TypedDict):
    """The fields that `times_of_drawn` reads from a result of benchmarks/judge.py."""

    rows: list[_DrawnShape]


def times_of_drawn(path: Path) -> Times:
    """The times of a result of benchmarks/judge.py, packed by xz: quick ones of every variant tried, by shape.

    Raises JsonError.
    """
    found = from_json(lzma.decompress(path.read_bytes()), _Drawn, str(path), "name a result of benchmarks/judge.py")
    return {
        workload_of(row["op"], {"m": row["m"], "n": row["n"], "k": row["k"]}): row["sieved_us"]
        for row in found["rows"]
        if row["sieved_us"]
    }


def times_of_table(table: TunedTable) -> Times:
    """The times of a tuned table: of each shape, those of the few best variants."""
    return {
        workload_of(row.op, row.sizes): dict(zip(row.variants, row.us, strict=True))
        for row in table.rows
        if row.op in REGISTRY.measured
    }


def prune(times: Times, within: float, among: Selection | None = None) -> Pruned:
    """The fewest kernels such that every workload has a variant within `within` of the best of a selection (None: of
    all). It chooses greedily: first the kernel that serves most of the remaining workloads, then the fastest.

    It leaves out a workload of which the selection has no measured variant. Losses are against the best of all.
    """
    allowed = None if among is None else {to_name(config.compiled) for config in among.configs}
    fit: Times = {}
    for workload, us in times.items():
        known = {name: time for name, time in us.items() if allowed is None or _compiled(name) in allowed}
        if known:
            fit[workload] = {name: time for name, time in known.items() if time <= (1 + within) * min(known.values())}
    kernel_of = {name: _compiled(name) for us in fit.values() for name in us}
    ratios: dict[Workload, dict[str, float]] = {}
    for workload, us in fit.items():
        best = ratios.setdefault(workload, {})
        for name, time in us.items():
            best[kernel_of[name]] = min(best.get(kernel_of[name], math.inf), time / min(us.values()))
    kernels = fewest(ratios)
    kept = set(kernels)
    winners: dict[str, None] = {}
    losses: dict[Workload, float] = {}
    for workload in sorted(fit):
        best_of_set = min((n for n in fit[workload] if kernel_of[n] in kept), key=lambda n: (fit[workload][n], n))
        winners[best_of_set] = None
        losses[workload] = fit[workload][best_of_set] / min(times[workload].values()) - 1
    return Pruned(variants=tuple(winners), kernels=tuple(kernels), losses=losses)


def _compiled(name: str) -> str:
    return to_name(parse_name(name).compiled)


def selection_of(pruned: Pruned, everything: Selection, name: str, calls: int = 0, within: float = 0.0) -> Selection:
    """The pruned variants among `everything`, with unmeasured ones: the same schedules for other outputs and epilogues.
    Variants without alignment needs stay.

    Classes of calls that nothing measured keep all their variants. With `calls` they keep the fewest kernels that are within
    `within` of the fastest by the model, at so many random calls of each. So every call keeps an answer.
    """
    measured = {workload.family for workload in pruned.losses}
    kin = {_kin(parse_name(variant)) for variant in pruned.variants}
    wanted = set(pruned.variants)

    def keeps(config: Config) -> bool:
        if REGISTRY.family_of(config).name not in measured:
            return False
        return to_name(config) in wanted or _sweep(config).is_last_resort(config) or _kin(config) in kin

    kept = set(filter(keeps, everything.configs))
    served = {served for config in kept for served in _classes(config)}
    others = [config for config in everything.configs if config not in kept and not _classes(config) <= served]
    kept |= modelled(others, served, calls, within, everything.arch.sm_count) if calls else set(others)
    return replace(everything, name=name, configs=tuple(config for config in everything.configs if config in kept))


def _classes(config: Config) -> frozenset[tuple[str, int]]:
    """The classes of calls that a variant serves."""
    family = REGISTRY.family_of(config)
    return frozenset((family.name, row.call_class) for row in family.tuning.rows(config, 0))


def _sweep(config: Config) -> Sweep:
    tuning = REGISTRY.family_of(config).tuning
    assert tuning.sweep is not None  # it was measured
    return tuning.sweep


def _kin(config: Config) -> Hashable:
    return REGISTRY.family_of(config).name, _sweep(config).kin(config)


@dataclass(frozen=True, kw_only=True)
class Audited:
    """The answer of today to a workload."""

    workload: Workload
    variant: str | None
    trust: str
    """The trust of the answer (exact, nearest or model), or none where no variant takes the workload."""
    expected_loss: float | None
    """The loss against tuning it. 0 where it was measured, None where there is nothing to compare."""
    unaligned: bool
    """Whether the variant that takes any alignment answers, which is slow."""


def audit(workloads: Iterable[Workload], build: BuildFacts, sm_count: int) -> list[Audited]:
    """The answer of a build with its tables to each workload."""
    found = []
    for workload in workloads:
        choice = select(build.table, workload.call, sm_count)
        entry = choice.entry
        found.append(
            Audited(
                workload=workload,
                variant=entry and entry.name,
                trust=choice.trust.name.lower() if entry else "none",
                expected_loss=_expected_loss(choice),
                unaligned=entry is not None and _sweep(entry.config).is_last_resort(entry.config),
            )
        )
    return found


def _expected_loss(choice: Choice) -> float | None:
    if choice.entry is None or choice.trust is Trust.EXACT:
        return None if choice.entry is None else 0.0
    return _sweep(choice.entry.config).losses.get(choice.trust.name.lower())


def worst_first(audited: Sequence[Audited]) -> list[Audited]:
    """The inexact answers. Workloads without a variant come first, then those of the largest expected loss."""
    return sorted(
        (a for a in audited if a.trust != "exact" or a.unaligned),
        key=lambda a: (a.variant is not None, -(a.expected_loss or 0.0), a.workload),
    )
