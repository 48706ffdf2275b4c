"""Compilation of candidates while others run: a selection's kernels in waves, the most promising first.

Each wave is a build of its own. While one runs, the next compiles. Each wave times the fastest of the waves before next
to the new ones, so that rounds compare them, and not times hours apart.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from gemmill.build.driver import build as compile_selection
from gemmill.build.errors import BuildError
from gemmill.build.options import BuildOptions
from gemmill.manifest import Manifest
from gemmill.registry import REGISTRY
from gemmill.runtime.variant_table import make_variant_table
from gemmill.space.names import symbol_of
from gemmill.space.selections import Selection
from gemmill.tuner.candidates import PLAUSIBLE, fitting
from gemmill.tuner.program import (
    Overlap,
    TuneRequest,
    TuneResult,
    conclude,
    facts_of_builds,
    note_builds,
    open_journal,
    stand_in_build,
    worker_spec,
)
from gemmill.tuner.protocol import WorkerSpec
from gemmill.tuner.sweep import Executor, Observer, run_sweep
from gemmill.tuner.workloads import Workload

KERNELS_OF_A_WAVE = 16
"""The kernels of a wave: two translation units. They take minutes to compile, and keep a GPU busy meanwhile."""

Compile = Callable[[Selection, BuildOptions], tuple[Path, Manifest]]


def tune_selection(
    request: TuneRequest,
    selection: Selection,
    executor_of: Callable[[WorkerSpec], Executor],
    options: BuildOptions | None = None,
    observer: Observer | None = None,
    compile_wave: Compile | None = None,
) -> TuneResult:
    """Measure the promising kernels of a selection on the request's workloads. Today's choices come from its own
    builds.

    Raises BuildError where a wave does not compile at all, and the errors of `gemmill.tuner.program.tune`.
    """
    compile_wave = compile_wave or _compile
    with executor_of(worker_spec(request)) as executor:
        here = executor.facts()
    sms = here.get("sm_count") or selection.arch.sm_count
    parts = waves_of(selection, request.workloads, sms)
    waves = [replace(part, name=f"{selection.name}-{i}") for i, part in enumerate(parts)]
    builds: list[tuple[Path, Manifest]] = list(request.builds)
    ahead = _Ahead(waves, lambda part: compile_wave(part, options or BuildOptions()))
    with open_journal(request, here) as journal:
        for wave, made in enumerate(ahead, start=1):
            builds.append(made)
            note_builds(journal, [*request.builds, made])
            current = replace(request, builds=[*request.builds[:1], made])
            facts = facts_of_builds(current, here)
            spec = worker_spec(request, [folder for folder, _ in builds])
            with executor_of(spec) as executor:
                run_sweep(
                    request.workloads, facts, executor, journal, request.options, sms, observer or Observer(), wave
                )
        result = conclude(request, journal)
    return replace(result, overlap=ahead.overlap)


def waves_of(selection: Selection, workloads: Sequence[Workload], sm_count: int) -> list[Selection]:
    """The selection's promising kernels in parts, those first that the model ranks highest for some workload."""
    _, manifest = stand_in_build(selection)
    entries = [entry for entry in manifest.entries if entry.family in REGISTRY.tunings]
    table = make_variant_table(entries, sorted({entry.symbol for entry in entries}), ())
    places: dict[str, float] = {}
    for workload in workloads:
        guesses: dict[str, float] = {}
        for entry, _, ns in fitting(table, workload, sm_count):
            guesses[entry.symbol] = min(guesses.get(entry.symbol, ns), ns)
        best = min(guesses.values(), default=0.0)
        for symbol, ns in guesses.items():
            if ns <= PLAUSIBLE * best:
                places[symbol] = min(places.get(symbol, ns / best), ns / best)
    ordered = sorted(places, key=lambda symbol: (places[symbol], symbol))
    parts = [set(ordered[i : i + KERNELS_OF_A_WAVE]) for i in range(0, len(ordered), KERNELS_OF_A_WAVE)]
    return [replace(selection, configs=tuple(c for c in selection.configs if symbol_of(c) in part)) for part in parts]


class _Ahead:
    """An iterator over the waves' builds, which makes the next one meanwhile. A wave of which nothing compiles is
    left out.
    """

    def __init__(self, waves: Sequence[Selection], make: Callable[[Selection], tuple[Path, Manifest]]) -> None:
        self._waves = waves
        self._make = make
        self._compiling = 0.0
        self._waiting = 0.0

    @property
    def overlap(self) -> Overlap:
        """The time that compiling took, at the end."""
        return Overlap(waves=len(self._waves), compiling_seconds=self._compiling, waiting_seconds=self._waiting)

    def __iter__(self) -> Iterator[tuple[Path, Manifest]]:
        with ThreadPoolExecutor(1, thread_name_prefix="gemmill-compiling") as pool:
            waiting: list[Future[tuple[Path, Manifest]]] = [pool.submit(self._timed, part) for part in self._waves]
            failures = 0
            try:
                for index, future in enumerate(waiting):
                    begun = perf_counter()
                    try:
                        made = future.result()
                    except BuildError:
                        failures += 1
                        if failures == len(waiting):
                            raise
                        continue
                    finally:
                        self._waiting += perf_counter() - begun if index else 0.0
                    yield made
            finally:
                for future in waiting:
                    future.cancel()

    def _timed(self, part: Selection) -> tuple[Path, Manifest]:
        begun = perf_counter()
        try:
            return self._make(part)
        finally:
            self._compiling += perf_counter() - begun


def _compile(selection: Selection, options: BuildOptions) -> tuple[Path, Manifest]:
    result = compile_selection(selection, options)
    return result.folder, result.manifest
