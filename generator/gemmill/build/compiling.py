"""Compilation of missing units, in rounds of ninja. A failing unit splits until the bad variants are known."""

import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gemmill.build.cache import Lookup
from gemmill.build.errors import BuildError, disk_full, first_error
from gemmill.build.failures import Failure
from gemmill.build.graph import run_graph
from gemmill.build.options import BuildObserver
from gemmill.build.requests import CompileOutcome
from gemmill.build.sources import Source, SourceKind
from gemmill.build.units import Unit, partition, split
from gemmill.build.workshop import Workshop
from gemmill.writing import work_folder


@dataclass(kw_only=True)
class _Round:
    """The results of the units that ran together."""

    retry: list[Unit] = field(default_factory=list)
    bad: dict[Source, str] = field(default_factory=dict)
    left_out: dict[Source, str] = field(default_factory=dict)
    """Error by source that could not be tried: another build may try it."""
    killed: bool = False


def compile_missing(missing: Sequence[Source], workshop: Workshop, observer: BuildObserver) -> dict[str, str]:
    """Put objects of all these sources in the cache.

    Records in the ledger the sources that do not compile, and returns their first error lines, by name. Raises
    BuildError, OSError.
    """
    units = partition(missing, workshop.options.job_count, workshop.options.dsl_job_count)
    total = sum(unit.seconds for unit in units)
    errors: dict[str, str] = {}
    folder = work_folder(workshop.options.home_dir)
    folder.mkdir(parents=True)
    try:
        while units:
            observer.started(total)
            result = _run_round(units, folder / uuid.uuid4().hex, workshop, observer)
            for source, error in result.bad.items():
                if not source.is_variant:
                    raise BuildError(f"kernels/{source.name} does not compile: {error}")
                workshop.ledger.record(source, error)
                errors[source.name] = error
            errors |= {source.name: error for source, error in result.left_out.items()}
            if result.killed:
                workshop = replace(workshop, options=replace(workshop.options, jobs=1))
            units = result.retry
            total += sum(unit.seconds for unit in units)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return errors


def _run_round(units: Sequence[Unit], folder: Path, workshop: Workshop, observer: BuildObserver) -> _Round:
    result, together = _Round(), workshop.options.job_count > 1
    fatal: list[str] = []

    def done(unit: Unit, outcome: CompileOutcome) -> None:
        bad = {source: outcome.bad[source.key] for source in unit.sources if source.key in outcome.bad}
        untried = {source: outcome.left_out[source.key] for source in unit.sources if source.key in outcome.left_out}
        result.bad |= bad
        result.left_out |= untried
        label = ", ".join(source.name for source in (*bad, *untried)) or unit.label
        observer.unit_done(label, unit.seconds, not (outcome.failure or bad or untried))
        if outcome.failure == Failure.TOOL and unit.kind is SourceKind.DSL:
            result.left_out |= dict.fromkeys(unit.sources, first_error(outcome.message))
        elif outcome.failure == Failure.SOURCE:
            if len(unit.sources) == 1:
                result.bad[unit.sources[0]] = first_error(outcome.message)
            else:
                result.retry += split(unit, outcome.message)
        elif outcome.failure == Failure.KILLED:
            result.killed = True
            if len(unit.sources) > 1:
                result.retry += split(unit, "")
            elif together:
                result.retry.append(unit)
            else:
                fatal.append(
                    f"the compiler was killed on {unit.label}, most likely for want of memory: give the machine more"
                )
        elif outcome.failure:
            fatal.append(_explain(unit, outcome, workshop))

    folder.mkdir()
    run_graph(units, folder, workshop, done)
    shutil.rmtree(folder, ignore_errors=True)
    if fatal:
        raise BuildError(fatal[0])
    return result


def _explain(unit: Unit, outcome: CompileOutcome, workshop: Workshop) -> str:
    if outcome.failure == Failure.DISK_FULL:
        places = f"objects go to {workshop.cache.folder}, the compiler's own files to TMPDIR or /tmp"
        return str(disk_full(f"compiling {unit.label}; {places}"))
    if outcome.failure == Failure.CHANGED:
        return f"{outcome.message} ({unit.label}): build again"
    return f"{unit.label} was not compiled: {first_error(outcome.message)}"


def look_again(work: Sequence[Source], workshop: Workshop) -> Lookup:
    """The cache's contents after compilation. Raises BuildError where an object is gone again."""
    workshop.memo.forget_checks()
    workshop.cache.forget()
    found = workshop.cache.lookup(work)
    if found.missing:
        raise BuildError(
            f"{found.missing[0].name} was compiled, but its object is not in {workshop.cache.folder} any more, or a header was "
            "changed meanwhile: build again"
        )
    return found
