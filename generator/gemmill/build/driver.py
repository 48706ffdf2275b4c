"""A build from selection to folder."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gemmill.build.cache import Entry
from gemmill.build.compiling import compile_missing, look_again
from gemmill.build.compressing import COMPRESSION, objects_of
from gemmill.build.errors import BuildError, reported
from gemmill.build.files import digest
from gemmill.build.linking import check_size, describe, intact_build, publish, runtimes
from gemmill.build.maintenance import remove_stale
from gemmill.build.options import BuildObserver, BuildOptions, BuildResult
from gemmill.build.planning import Work, survey
from gemmill.build.sources import EXPORTS, Source, SourceKind, text_source
from gemmill.build.workshop import Workshop, open_workshop
from gemmill.emit.render import TemplateError, render
from gemmill.manifest import Manifest, RejectedEntry
from gemmill.ownership import own_files
from gemmill.space.names import to_name
from gemmill.space.selections import Selection
from gemmill.version import __version__

_VARIANT_TABLE = "extension/variants.cpp.jinja"
_BUILD_ID_DIGITS = 12


def build(selection: Selection, options: BuildOptions, observer: BuildObserver | None = None) -> BuildResult:
    """Compile the units that the cache lacks, link them, and publish the build below `options.home_dir`/builds.

    A second call with the same build returns the first. Leaves out and lists the variants that do not compile. Raises
    BuildError; every earlier build is then as it was.
    """
    observer = observer or BuildObserver()
    started = time.monotonic()
    home = options.home_dir
    with reported(home, "building"), own_files():
        workshop = open_workshop(selection.arch, options)
        work = survey(selection, workshop)
        home.mkdir(parents=True, exist_ok=True)
        errors = dict(work.bad)
        found = work.found
        remove_stale(home)
        if found.missing:
            errors |= compile_missing(found.missing, workshop, observer)
            found = look_again(_good(work, errors), workshop)
        _check_any_left(_good(work, errors), errors, work.remembered)
        compile_seconds = time.monotonic() - started
        with suppress(OSError):  # costs at most another link
            workshop.cache.keep_choice(_good(work, errors), found.entries)
        manifest, folder, reused = _finish(selection, work, found.entries, errors, workshop, observer)
        with suppress(OSError):  # the next build computes the lost facts again
            workshop.memo.save()
            workshop.known.save()
    result = BuildResult(
        folder=folder,
        manifest=manifest,
        compile_seconds=compile_seconds,
        reused=reused,
        remembered=len(work.remembered),
    )
    observer.finished(result)
    return result


def _good(work: Work, errors: dict[str, str]) -> list[Source]:
    return [source for source in (*work.variants, *work.files) if source.name not in errors]


def _check_any_left(sources: Sequence[Source], errors: dict[str, str], remembered: frozenset[str]) -> None:
    if not any(source.is_variant for source in sources):
        name, error = next(iter(sorted(errors.items())))
        again = f"; {len(remembered)} failed in an earlier build, --retry-failed tries them again" if remembered else ""
        raise BuildError(f"none of the {len(errors)} kernels compiles; the first, {name}: {error}{again}")


def _finish(
    selection: Selection,
    work: Work,
    entries: Sequence[Entry],
    errors: dict[str, str],
    workshop: Workshop,
    observer: BuildObserver,
) -> tuple[Manifest, Path, bool]:
    rejected = tuple(RejectedEntry(name=name, error=error) for name, error in sorted(errors.items()))
    variants = [source for source in work.variants if source.name not in errors]
    names = [to_name(config) for config in selection.configs if to_name(config.compiled) not in errors]
    build_id = digest(
        __version__,
        selection.name,
        str(selection.arch),
        names,
        [[row.name, row.error] for row in rejected],
        sorted(entry.key for entry in entries),
        _variant_table(variants, ""),
        [workshop.flags.link, EXPORTS, COMPRESSION],
        [workshop.toolchain.host_build, *[workshop.memo.get(path) for path in runtimes(variants, workshop)]],
    )[:_BUILD_ID_DIGITS]
    target = workshop.options.home_dir / "builds" / build_id
    if (manifest := intact_build(target)) is not None:
        check_size(manifest, manifest.extension_bytes, workshop.options.max_size)
        return manifest, target, True

    observer.linking()
    table = text_source(SourceKind.BINDING, "variants.cpp", _variant_table(variants, build_id), workshop.keys)
    table_entries = workshop.cache.lookup([table])
    if table_entries.missing:
        compile_missing([table], workshop, BuildObserver())
        table_entries = look_again([table], workshop)
    objects = objects_of((*table_entries.entries, *entries), variants, workshop)
    objects += runtimes(variants, workshop)
    sources = {source.symbol: source for source in work.variants}
    manifest = describe(selection, build_id, entries, rejected, sources, workshop)
    return publish(manifest, target, objects, workshop), target, False


def _variant_table(variants: Sequence[Source], build_id: str) -> str:
    try:
        return render(_VARIANT_TABLE, {"symbols": sorted(v.symbol for v in variants), "build_id": build_id})
    except TemplateError as error:
        raise BuildError(str(error)) from None
