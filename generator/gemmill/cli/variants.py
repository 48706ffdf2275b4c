"""The search for builds and variants by a user's words."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gemmill.cli.exits import UsageError
from gemmill.vocab import Arch, Status

if TYPE_CHECKING:  # the families' declarations take longer to import than a verb's help takes to print
    from gemmill.family import Config
    from gemmill.manifest import KernelEntry, Manifest
    from gemmill.space.selections import Selection

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A variant, and its build if it has one."""

    name: str
    config: "Config"
    status: Status
    """The rules' verdict on the variant's config."""
    entry: "KernelEntry | None" = None
    manifest: "Manifest | None" = None
    folder: Path | None = None


def selection_of(
    name: str, arch: Arch, filters: Sequence[str] | None, epilogues: Sequence[str] | None = None
) -> "Selection":
    """The named selection with the kernels of users' epilogues, filtered. Raises UsageError."""
    from gemmill.space.filters import apply
    from gemmill.space.selections import select

    try:
        return apply(_with_epilogues(select(name, arch), epilogues or ()), filters or ())
    except ValueError as error:
        raise UsageError(str(error)) from None


def _with_epilogues(selection: "Selection", epilogues: Sequence[str]) -> "Selection":
    """A selection with the kernels of each MODULE:FUNCTION. Raises ValueError."""
    if not epilogues:
        return selection
    from gemmill.epilogue import named
    from gemmill.registry import REGISTRY
    from gemmill.space.selections import with_configs

    wanted = list(map(named, dict.fromkeys(epilogues)))
    for family in REGISTRY.families:
        if family.epilogues is not None:
            for own in wanted:
                configs = family.epilogues.configs(own.traced.text, own.operands, own.results, selection.arch)
                selection = with_configs(selection, configs)
    return selection


def build_of(named: str | None, arch: Arch | None = None) -> "tuple[Path, Manifest]":
    """The build with this id or path.

    Without one, it is the build that serves `arch`. Without `arch` too, it is that of GEMMILL_BUILD, else the one that
    serves. Raises ManifestError. Raises UsageError for a build together with an architecture.
    """
    from gemmill import settings
    from gemmill.manifest import read_manifest
    from gemmill.runtime.builds import MANIFEST, resolve, serving

    if named is not None and arch is not None:
        raise UsageError("--build with --arch: a build is of one architecture, leave --arch out")
    named = named or (settings.build() if arch is None else None)
    if named is None:
        return serving(arch)
    folder = resolve(named)
    return folder, read_manifest(folder / MANIFEST)


def timed_build_of(named: str | None) -> "tuple[Path, Manifest]":
    """`build_of` for times. Raises UsageError for an emulated build, whose times would stand for another GPU's."""
    folder, manifest = build_of(named)
    if manifest.is_emulated:
        raise UsageError(
            f"build {manifest.build_id} is for {manifest.made_for}: its times say nothing of {manifest.arch}, name another build with --build"
        )
    return folder, manifest


def filter_entries(manifest: "Manifest", filters: Sequence[str] | None) -> "list[KernelEntry]":
    """The entries of a build that match all filters. Raises UsageError."""
    from gemmill.space.filters import apply
    from gemmill.space.selections import Selection

    everything = Selection(
        name=manifest.selection,
        arch=Arch(manifest.arch),
        configs=tuple(e.config for e in manifest.entries),
        rejections=(),
    )
    try:
        kept = set(apply(everything, filters or ()).configs)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return [entry for entry in manifest.entries if entry.config in kept]


def refuse_both(selection: str | None, build: str | None) -> None:
    """Check that the command does not name both a selection and a build. Raises UsageError where it does."""
    if selection is not None and build is not None:
        raise UsageError("--select with --build: a variant is looked for in one of them, leave the other out")


def variant_of(wanted: str, selection: str | None, arch: Arch | None, build: str | None) -> Variant:
    """The one variant that a name or glob means: in a build, else in a selection, else as the name says.

    Raises UsageError, and ManifestError where it cannot read a named build.
    """
    from gemmill.manifest import ManifestError
    from gemmill.registry import REGISTRY
    from gemmill.space.names import current_name, is_alias, to_name

    refuse_both(selection, build)
    wanted = current_name(wanted)
    if selection is not None:
        found = selection_of(selection, arch or Arch.SM90A, None)
        config = _only(wanted, [(to_name(c), c) for c in found.configs], f"selection {selection!r}")
        return Variant(name=to_name(config), config=config, status=REGISTRY.check(config))
    try:
        folder, manifest = build_of(build, arch)
    except ManifestError:
        if build is not None:
            raise
        return _by_name(wanted, "there is no build")
    if not _is_glob(wanted) and not is_alias(wanted) and wanted not in (entry.name for entry in manifest.entries):
        return _by_name(wanted, f"build {manifest.build_id} has no such variant")
    entry = _only(wanted, [(e.name, e) for e in manifest.entries], f"build {manifest.build_id}")
    return Variant(
        name=entry.name,
        config=entry.config,
        status=REGISTRY.check(entry.config),
        entry=entry,
        manifest=manifest,
        folder=folder,
    )


def _by_name(name: str, why: str) -> Variant:
    from gemmill.registry import REGISTRY
    from gemmill.space.names import parse_name

    try:
        config = parse_name(name)
    except ValueError as error:
        raise UsageError(f"{why}, and {error}; `gemmill list` and `gemmill list --select sweep` print names") from None
    return Variant(name=name, config=config, status=REGISTRY.check(config))


def _is_glob(text: str) -> bool:
    return any(character in text for character in "*?[")


def _only(wanted: str, named: list[tuple[str, T]], where: str) -> T:
    from gemmill.space.names import alias_of

    found = [(name, value) for name, value in named if wanted in (name, alias_of(name)) or fnmatchcase(name, wanted)]
    if len(found) == 1:
        return found[0][1]
    if not found:
        raise UsageError(f"no variant of {where} is called {wanted}; `gemmill list` prints names")
    raise UsageError(
        f"{len(found)} variants of {where} match {wanted}, for example {found[0][0]} and {found[1][0]}: name one"
    )
