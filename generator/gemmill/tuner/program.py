"""The work of `gemmill tune`: builds and workloads make a journal, the journal makes tables and a report."""

import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemmill import locations, settings
from gemmill.family import Config
from gemmill.manifest import SCHEMA_VERSION, KernelEntry, Manifest, Toolchain
from gemmill.registry import REGISTRY
from gemmill.runtime.table_file import TunedTable, file_name
from gemmill.runtime.tuned import Machine
from gemmill.space.names import symbol_of, to_name
from gemmill.space.selections import Selection
from gemmill.tuner.candidates import BuildFacts, build_facts
from gemmill.tuner.choice import Agreement
from gemmill.tuner.executors import LocalExecutor
from gemmill.tuner.journal import Journal, Record
from gemmill.tuner.protocol import WorkerSpec
from gemmill.tuner.sweep import Executor, Observer, SweepOptions, agreement_of, run_sweep
from gemmill.tuner.tables import NO_DEVICE, measured_build, tables_of, write_table
from gemmill.tuner.workloads import Workload
from gemmill.version import __version__

DRY_BUILD = "dry-run"
DRY_SM_COUNT = 132


@dataclass(frozen=True, kw_only=True)
class TuneRequest:
    """One sweep."""

    workloads: Sequence[Workload]
    builds: Sequence[tuple[Path, Manifest]]
    """Folders with their manifests; candidates come from all, today's choices from the first."""
    names: frozenset[str] | None = None
    """Variants to try; None for all."""
    options: SweepOptions = field(default_factory=SweepOptions)
    journal: Path | None = None
    """The journal's file; None for one in the home, by device and build."""
    label: str = ""
    """A part of the journal's name and setup, where a selection that compiles meanwhile has the candidates."""
    fresh: bool = False
    """Whether to begin the journal again."""
    table: Path | None = None
    """The file whose rows the run replaces; None for the device's in the home."""
    dry_run: bool = False
    vllm_library: str | None = None


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """The time that compiling candidates took while others were measured."""

    waves: int
    compiling_seconds: float
    waiting_seconds: float
    """Seconds after the first wave in which nothing was measured."""


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """The result of a sweep."""

    journal: Path
    record: Record
    tables: tuple[tuple[Path | None, TunedTable], ...]
    """The tables, each with the file that it was merged into; None without a file."""
    agreements: tuple[Agreement, ...]
    """The agreement of each further run with the first."""
    overlap: Overlap | None = None
    """The time that compiling took; None where nothing was compiled."""


def tune(
    request: TuneRequest,
    observer: Observer | None = None,
    executor_of: Callable[[WorkerSpec], Executor] = LocalExecutor,
) -> TuneResult:
    """Measure the workloads that the journal lacks, write tables. Raises TuneError, JournalError, TableError, OSError.

    After an interruption the journal has every outcome so far; the same request continues from it.
    """
    spec = worker_spec(request)
    with executor_of(spec) as executor:
        here = executor.facts()
        with open_journal(request, here) as journal:
            facts = facts_of_builds(request, here)
            note_builds(journal, request.builds)
            sms = here.get("sm_count") or DRY_SM_COUNT
            run_sweep(request.workloads, facts, executor, journal, request.options, sms, observer or Observer())
            return conclude(request, journal)


def worker_spec(request: TuneRequest, builds: Sequence[Path] | None = None) -> WorkerSpec:
    """The spec that starts measuring processes."""
    folders = [folder for folder, _ in request.builds] if builds is None else builds
    return WorkerSpec(
        builds=() if request.dry_run else tuple(map(str, folders)),
        dry_run=request.dry_run,
        vllm_library=request.vllm_library,
    )


def facts_of_builds(request: TuneRequest, here: Mapping[str, Any]) -> list[BuildFacts]:
    """The facts of the request's builds, as far as planning needs them."""
    return [
        build_facts(
            folder,
            manifest,
            Machine(
                arch=manifest.arch,
                device=here.get("gpu"),
                driver=here.get("driver"),
                nvcc=manifest.toolchain.nvcc,
            ),
            request.names,
        )
        for folder, manifest in request.builds
    ]


def open_journal(request: TuneRequest, here: Mapping[str, Any]) -> Journal:
    """The request's journal, to be written. Raises JournalError."""
    ids = [*([request.label] if request.label else []), *(manifest.build_id for _, manifest in request.builds)]
    device = here.get("gpu") or NO_DEVICE
    setup = {
        "gemmill": __version__,
        "device": device,
        "driver": here.get("driver"),
        "builds": ids,
        "rounds": request.options.rounds,
        "dry_run": request.dry_run,
    }
    path = request.journal or settings.home() / "tune" / file_name(device).replace(".json", f"-{ids[0]}.jsonl")
    if request.fresh:
        path.unlink(missing_ok=True)
    return Journal(path, setup, (shlex.join(["gemmill", *sys.argv[1:]]), _commit()))


def _commit() -> str:
    """The commit of the checkout that runs, with `+` where its files differ. Empty outside of a checkout."""
    folder = locations.checkout()
    git = ["git", "-C", str(folder), "describe", "--always", "--abbrev=10", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip() if folder else ""
    except (OSError, subprocess.CalledProcessError):
        return ""


def note_builds(journal: Journal, builds: Sequence[tuple[Path, Manifest]]) -> None:
    """Copy the facts of builds that tables need into the journal."""
    for folder, manifest in builds:
        journal.build(str(folder), measured_build(manifest))


def conclude(request: TuneRequest, journal: Journal) -> TuneResult:
    """Tables from all that the journal has of the request's workloads."""
    repeats = request.options.repeats
    wanted = set(request.workloads)
    record = Record(
        setup=journal.record.setup,
        begun_by=journal.record.begun_by,
        entries={key: entry for key, entry in journal.record.entries.items() if key[0] in wanted},
        faults={workload: faults for workload, faults in journal.record.faults.items() if workload in wanted},
        builds=journal.record.builds,
    )
    tables: list[tuple[Path | None, TunedTable]] = []
    for table in tables_of(record, repeats, request.options.margin):
        path = request.table
        if path is None and not request.dry_run:
            path = settings.home() / "tables" / file_name(table.device)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_table(table, path)
        tables.append((path, table))
    return TuneResult(
        journal=journal.path,
        record=record,
        tables=tuple(tables),
        agreements=tuple(agreement_of(record, repeats, request.options.margin)),
    )


def stand_in_build(selection: Selection) -> tuple[Path, Manifest]:
    """A stand-in for a selection's build, for a dry run."""
    entries = tuple(_stand_in_entry(config) for config in selection.configs)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        build_id=DRY_BUILD,
        gemmill_version=__version__,
        arch=str(selection.arch),
        selection=selection.name,
        toolchain=Toolchain(nvcc="", cuda_major=0, cutlass="", host_compiler="", cutedsl="", flags=()),
        entries=entries,
    )
    return Path(DRY_BUILD), manifest


def _stand_in_entry(config: Config) -> KernelEntry:
    return KernelEntry(
        name=to_name(config),
        family=REGISTRY.family_of(config).name,
        config=config,
        symbol=symbol_of(config),
        ops=REGISTRY.ops_of(config),
        epilogue=REGISTRY.epilogue_of(config),
    )
