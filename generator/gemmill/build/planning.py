"""From a selection to the units that are still to be compiled."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmill.build.cache import Entry, Lookup, ObjectCache
from gemmill.build.dsl import DslPackage, find_dsl
from gemmill.build.errors import BuildError, reported
from gemmill.build.files import FileMemo, digest
from gemmill.build.graph import CompileContext
from gemmill.build.ledger import Ledger
from gemmill.build.options import BuildOptions, Plan
from gemmill.build.sources import (
    BINDING,
    Flags,
    Source,
    SourceKind,
    file_sources,
    flags_for,
    is_of_dsl,
    kernel_folders,
    roots_of,
    variant_source,
)
from gemmill.build.toolchain import ToolchainPaths, find_launcher, find_toolchain
from gemmill.build.units import Unit, partition
from gemmill.emit.render import TemplateError
from gemmill.family import Config
from gemmill.manifest import RejectedEntry
from gemmill.ownership import distrust
from gemmill.space.selections import Selection
from gemmill.vocab import Arch

# An SM90 variant of a shared object, nvcc 13.0, 2026-11-20, and one of the CuTe DSL 4.8.1; the binding's part of an
# extension, static CUDA runtime included.
_OBJECT_BYTES = 90_000
_DSL_OBJECT_BYTES = 42_000
_BINDING_BYTES = 1_100_000


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """What a build works with."""

    options: BuildOptions
    arch: Arch
    toolchain: ToolchainPaths
    dsl: DslPackage | None
    without_dsl: str
    """Why there is none."""
    flags: Flags
    roots: dict[str, Path]
    memo: FileMemo
    memo_path: Path
    cache: ObjectCache
    ledger: Ledger
    launcher: tuple[str, ...]

    @property
    def context(self) -> CompileContext:
        """What the ninja graph needs."""
        return CompileContext(
            arch=self.arch,
            toolchain=self.toolchain,
            dsl=self.dsl,
            flags=self.flags,
            roots=self.roots,
            launcher=self.launcher,
            cache=self.cache.folder,
            memo=self.memo_path,
            jobs=self.options.job_count,
            dsl_jobs=self.options.dsl_job_count,
            mixed_jobs=self.options.mixed_job_count,
            scheduler=self.options.scheduler,
        )


@dataclass(frozen=True, kw_only=True)
class Work:
    """A selection's sources, and what has become of them."""

    variants: tuple[Source, ...]
    files: tuple[Source, ...]
    bad: dict[str, str]
    """Error by variant name: known from the ledger, or of all that the CuTe DSL would compile, where there is none."""
    remembered: frozenset[str]
    """The names that are bad by the ledger alone: `retry_failed` tries them."""
    found: Lookup
    """Of all sources that are not bad."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Objects in the cache."""
        return self.found.entries


def open_workshop(arch: Arch, options: BuildOptions) -> Workshop:
    """Toolchain, cache and ledger of a build. Raises BuildError; writes nothing."""
    home, kernels = options.home_dir, options.kernels_folder
    _check_writers(home)
    memo_path = home / "memo" / "files.json"
    memo = FileMemo(memo_path)
    toolchain = find_toolchain(options.cuda_home, memo=memo)
    dsl, without_dsl = _dsl_or_reason(toolchain, memo)
    roots = roots_of(toolchain, kernels)
    with reported(kernels, "reading gemmill's headers"):
        ledger = Ledger(home / "cache", kernel_folders(kernels).values(), toolchain.cutlass_version, memo)
    return Workshop(
        options=options,
        arch=arch,
        toolchain=toolchain,
        dsl=dsl,
        without_dsl=without_dsl,
        flags=flags_for(arch),
        roots=roots,
        memo=memo,
        memo_path=memo_path,
        cache=ObjectCache(home / "cache", roots, memo),
        ledger=ledger,
        launcher=find_launcher(),
    )


def _check_writers(home: Path) -> None:
    with reported(home, "looking into the home"):
        for folder in (home, *(home / name for name in ("builds", "cache", "memo", "work")), *home.glob("cache/*")):
            if folder.exists() and (reason := distrust(folder, folder.stat())):
                raise BuildError(reason)


def _dsl_or_reason(toolchain: ToolchainPaths, memo: FileMemo) -> tuple[DslPackage | None, str]:
    try:
        return find_dsl(toolchain.cuda_major, memo), ""
    except BuildError as error:
        return None, str(error)


def variant_sources(configs: Sequence[Config], flags: Flags, compiler_build: str, dsl_build: str) -> tuple[Source, ...]:
    """One source for each different kernel, by symbol. Raises BuildError where a template cannot be rendered."""
    try:
        compiled = {config.compiled for config in configs}
        sources = [
            variant_source(config, flags, dsl_build if is_of_dsl(config) else compiler_build) for config in compiled
        ]
    except TemplateError as error:
        raise BuildError(str(error)) from None
    return tuple(sorted(sources, key=lambda source: source.symbol))


def survey(selection: Selection, workshop: Workshop) -> Work:
    """What the selection needs, what the cache has of it and what is known to fail."""
    if not selection.configs:
        raise BuildError(
            f"selection {selection.name!r} has no variant for {selection.arch}: see `gemmill list` for what there is"
        )
    tools, dsl = workshop.toolchain, workshop.dsl
    dsl_build = digest(dsl.build, tools.host_build) if dsl else ""
    variants = variant_sources(selection.configs, workshop.flags, tools.compiler_build, dsl_build)
    kernels = workshop.options.kernels_folder
    files = tuple(file_sources(kernels, workshop.flags, workshop.toolchain))
    if not any(source.kind is SourceKind.BINDING for source in files):
        raise BuildError(f"no C++ files in {kernels / BINDING}: they bind the kernels to torch; reinstall gemmill")
    bad = {}
    if not workshop.options.retry_failed:
        bad = {s.name: error for s in variants if (error := workshop.ledger.known_error(s)) is not None}
    remembered = frozenset(bad)
    if dsl is None:
        bad |= {s.name: workshop.without_dsl for s in variants if s.kind is SourceKind.DSL}
    wanted = [source for source in (*variants, *files) if source.name not in bad]
    found = workshop.cache.lookup(wanted)
    return Work(variants=variants, files=files, bad=bad, remembered=remembered, found=found)


def plan(selection: Selection, options: BuildOptions) -> Plan:
    """What `build` would do; compiles and writes nothing. Without a toolchain, what it would do with an empty cache.
    Raises BuildError."""
    try:
        workshop = open_workshop(selection.arch, options)
    except BuildError as error:
        variants = variant_sources(selection.configs, flags_for(selection.arch), "", "")
        units = partition(variants, options.job_count, options.dsl_job_count)
        return _plan(selection, options, variants, units, (), {}, str(error))
    work = survey(selection, workshop)
    units = partition(work.found.missing, options.job_count, options.dsl_job_count)
    return _plan(selection, options, work.variants, units, work.entries, work.bad, "")


def _plan(
    selection: Selection,
    options: BuildOptions,
    variants: tuple[Source, ...],
    units: list[Unit],
    entries: Sequence[Entry],
    bad: dict[str, str],
    without_toolchain: str,
) -> Plan:
    sizes = {SourceKind.BINDING: 0, SourceKind.DSL: _DSL_OBJECT_BYTES}
    unknown = sum(len(unit.sources) * sizes.get(unit.kind, _OBJECT_BYTES) for unit in units)
    return Plan(
        selection=selection.name,
        arch=selection.arch,
        configs=selection.configs,
        kernels=variants,
        units=tuple(units),
        cached=tuple(sorted(name for entry in entries for name in entry.members.values())),
        known_bad=tuple(RejectedEntry(name=name, error=error) for name, error in sorted(bad.items())),
        jobs=options.job_count,
        estimated_cpu_seconds=sum(unit.seconds for unit in units),
        estimated_bytes=_BINDING_BYTES + unknown + sum(entry.object_bytes for entry in entries),
        without_toolchain=without_toolchain,
    )
