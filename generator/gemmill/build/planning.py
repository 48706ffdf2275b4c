"""From a selection to the units that its build must still compile."""

from collections.abc import Sequence
from dataclasses import dataclass

from gemmill.build.cache import Entry, Lookup
from gemmill.build.errors import BuildError
from gemmill.build.options import BuildOptions, BuildPlan
from gemmill.build.remembered import KnownSources
from gemmill.build.sources import BINDING, Keys, Source, SourceKind, file_sources, variant_source
from gemmill.build.units import Unit, partition
from gemmill.build.workshop import Workshop, keys_for, open_workshop
from gemmill.emit.adapter import has_host_code
from gemmill.emit.render import TemplateError
from gemmill.family import Config
from gemmill.manifest import RejectedEntry
from gemmill.space.selections import Selection

# Bytes of one SM90 kernel in an extension, machine code compressed, of nvcc 13.0 or of the CuTe DSL 4.8.1: the mean of
# `default`, 2026-11-23. The last is the binding's part, static CUDA runtime included.
_KERNEL_BYTES = 14_500
_BINDING_BYTES = 1_300_000
NO_HOST_CODE = (
    "gemmill has no host code of its own for this kernel of the CuTe DSL: build without --own-host-code to have it"
)


@dataclass(frozen=True, kw_only=True)
class Work:
    """A selection's sources, and the facts of each."""

    variants: tuple[Source, ...]
    files: tuple[Source, ...]
    bad: dict[str, str]
    """Error by variant name. The ledger knows it; without a CuTe DSL, all that it would compile are here too."""
    remembered: frozenset[str]
    """Names that are bad by the ledger alone: `retry_failed` tries them again."""
    found: Lookup
    """The cached objects of all sources but the bad ones."""


def variant_sources(configs: Sequence[Config], keys: Keys, known: KnownSources | None = None) -> tuple[Source, ...]:
    """One source for each different kernel, by symbol. Raises BuildError where a template cannot be rendered, OSError."""
    try:
        sources = [variant_source(config, keys, known) for config in {config.compiled for config in configs}]
    except TemplateError as error:
        raise BuildError(str(error)) from None
    return tuple(sorted(sources, key=lambda source: source.symbol))


def survey(selection: Selection, workshop: Workshop) -> Work:
    """The sources that the selection needs, their cached objects, and the known failures. Raises BuildError."""
    if not selection.configs:
        raise BuildError(
            f"selection {selection.name!r} has no variant for {selection.arch}: see `gemmill list` for what there is"
        )
    variants = variant_sources(selection.configs, workshop.keys, workshop.known)
    kernels = workshop.options.kernels_folder
    files = tuple(file_sources(kernels, workshop.keys))
    if not any(source.kind is SourceKind.BINDING for source in files):
        raise BuildError(f"no C++ files in {kernels / BINDING}: they bind the kernels to torch; reinstall gemmill")
    bad = {}
    if not workshop.options.retry_failed:
        bad = {s.name: error for s in variants if (error := workshop.ledger.known_error(s)) is not None}
    remembered = frozenset(bad)
    if workshop.dsl is None:
        bad |= {s.name: workshop.without_dsl for s in variants if s.kind is SourceKind.DSL}
    elif workshop.options.own_host_code:
        bad |= {s.name: NO_HOST_CODE for s in variants if s.kind is SourceKind.DSL and not has_host_code(s.name)}
    wanted = [source for source in (*variants, *files) if source.name not in bad]
    found = workshop.cache.lookup(wanted)
    return Work(variants=variants, files=files, bad=bad, remembered=remembered, found=found)


def plan(selection: Selection, options: BuildOptions) -> BuildPlan:
    """The plan that `build` would follow. Compiles and writes nothing.

    Without a toolchain, the plan is for an empty cache. Raises BuildError.
    """
    try:
        workshop = open_workshop(selection.arch, options)
    except BuildError as error:
        variants = variant_sources(selection.configs, keys_for(selection.arch, options))
        units = partition(variants, options.job_count, options.dsl_job_count)
        return _plan(selection, options, variants, units, (), {}, str(error))
    work = survey(selection, workshop)
    units = partition(work.found.missing, options.job_count, options.dsl_job_count)
    return _plan(selection, options, work.variants, units, work.found.entries, work.bad, "")


def _plan(
    selection: Selection,
    options: BuildOptions,
    variants: tuple[Source, ...],
    units: list[Unit],
    entries: Sequence[Entry],
    bad: dict[str, str],
    without_toolchain: str,
) -> BuildPlan:
    return BuildPlan(
        selection=selection.name,
        arch=selection.arch,
        configs=selection.configs,
        kernels=variants,
        units=tuple(units),
        cached=tuple(sorted(name for entry in entries for name in entry.members.values())),
        known_bad=tuple(RejectedEntry(name=name, error=error) for name, error in sorted(bad.items())),
        jobs=options.job_count,
        estimated_cpu_seconds=sum(unit.seconds for unit in units),
        estimated_bytes=_BINDING_BYTES + _KERNEL_BYTES * (len(variants) - len(bad)),
        without_toolchain=without_toolchain,
    )
