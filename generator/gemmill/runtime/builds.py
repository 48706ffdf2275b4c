"""Builds on disk: finding them, and which one serves an architecture."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from gemmill import settings
from gemmill.locations import installed
from gemmill.manifest import Manifest, ManifestError, read_manifest
from gemmill.version import __version__
from gemmill.vocab import Arch, without_kernels
from gemmill.writing import work_folder, write_whole

MANIFEST = "manifest.json"
ENTRY_POINTS = "gemmill.builds"
"""The group of entry points of installed packages of kernels."""
_INSIDE = Path(__file__).resolve().parent.parent / "_builds"


@dataclass(frozen=True, kw_only=True)
class _Shipped:
    """A folder of builds that pip installed."""

    package: str
    """The name that pip knows it by."""
    version: str
    """The version of gemmill that it belongs to."""
    folder: Path


class UnfitPackageError(ManifestError):
    """An installed package of kernels that belongs to another version of gemmill."""


def find_builds(home: Path | None = None) -> list[Path]:
    """Folders with a manifest, newest first: below `home` (default: settings.home()), then those that pip installed.
    Raises ManifestError where the home cannot be looked into."""
    home = home or settings.home()
    try:
        own = sorted(_folders(home / "builds"), key=_made, reverse=True)
    except OSError as error:
        raise ManifestError(
            f"cannot look for builds in {home} ({error.strerror}): name another folder with GEMMILL_HOME"
        ) from None
    return own + [folder for shipped in _shipped() for folder in sorted(_folders(shipped.folder))]


def read_build(folder: Path) -> Manifest:
    """The manifest of a build. Raises ManifestError, where pip installed the build for another version of gemmill too."""
    for shipped in _shipped():
        if folder.parent == shipped.folder and shipped.version != __version__:
            raise UnfitPackageError(
                f"{shipped.package} {shipped.version} belongs to gemmill {shipped.version}, and gemmill {__version__} is "
                f"installed: `pip install gemmill=={shipped.version}`, or install {shipped.package} {__version__}"
            )
    return read_manifest(folder / MANIFEST)


def resolve(named: str | Path, home: Path | None = None) -> Path:
    """The folder of a build given by its id, or by a path. A text with a separator in it is a path.

    Raises ManifestError if there is none.
    """
    if isinstance(named, Path) or os.sep in named:
        if (Path(named) / MANIFEST).is_file():
            return Path(named).resolve()
        raise ManifestError(f"no build at {named}: it is no folder with a {MANIFEST}")
    known = find_builds(home)
    for folder in known:
        if folder.name == named:
            return folder
    raise ManifestError(
        f"no build {named!r}: it is not the id of one of the builds here ({_listed(known)}); a folder is named by a path, "
        f"as .{os.sep}{named}"
    )


def serving(arch: str | None, home: Path | None = None) -> tuple[Path, Manifest]:
    """The build that serves an architecture, or the first one with a build if it is None.

    That is the current build, else the newest that can be read. Raises ManifestError with a list of the builds found.
    """
    for known in Arch if arch is None else [arch]:
        if (named := current(known, home)) is not None:
            return _current_build(known, named, home)
    return newest(arch, home)


def current(arch: str, home: Path | None = None) -> str | None:
    """The id of an architecture's current build. Raises ManifestError where it cannot read the file."""
    marker = _marker(arch, home)
    try:
        return marker.read_text(encoding="ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ManifestError(
            f"{marker} does not say which build is current ({error}): `gemmill builds use ID` writes it again"
        ) from None


def newest(arch: str | None, home: Path | None = None) -> tuple[Path, Manifest]:
    """The newest readable build for an architecture (any, if None). Raises ManifestError with a list of the builds
    found.
    """
    if arch is not None and arch not in set(Arch):
        raise ManifestError(without_kernels(arch))
    refused, unfit = [], None
    for folder in find_builds(home):
        try:
            manifest = read_build(folder)
        except UnfitPackageError as error:
            unfit = error
            continue
        except ManifestError as error:
            refused.append(str(error))
            continue
        if arch in (None, manifest.arch) and not manifest.is_emulated:
            return folder, manifest
        refused.append(f"{folder.name} is for {manifest.made_for}")
    if unfit is not None:
        raise unfit
    found = f" ({'; '.join(refused)})" if refused else ""
    wanted = f" for {arch}" if arch else ""
    raise ManifestError(
        f"no build of gemmill{wanted} in {home or settings.home()}{found}: run `gemmill build`, or name one with GEMMILL_BUILD"
    )


def use(folder: Path, home: Path | None = None) -> Manifest:
    """Make a build of the home, or one that pip installed, the current one of its architecture. Raises ManifestError,
    OSError."""
    if folder not in find_builds(home):
        raise ManifestError(
            f"build {folder} is not in {home or settings.home()}, so it cannot be current there: "
            f"set GEMMILL_BUILD={folder}, or name its home with GEMMILL_HOME"
        )
    manifest = read_build(folder)
    if manifest.is_emulated:
        raise ManifestError(_only_named(manifest))
    marker = _marker(manifest.arch, home)
    marker.parent.mkdir(parents=True, exist_ok=True)
    write_whole(marker, f"{folder.name}\n")
    return manifest


def remove(folder: Path, home: Path | None = None, *, force: bool = False) -> None:
    """Delete a build. A process that uses it keeps it.

    Raises ManifestError for a build that serves, unless forced, and for one that pip installed. Raises OSError.
    """
    for shipped in _shipped():
        if folder.parent == shipped.folder:
            raise ManifestError(
                f"build {folder.name} is part of an installed package: `pip uninstall {shipped.package}` removes it"
            )
    served = [arch for arch in Arch if current(arch, home) == folder.name]
    if served and not force:
        raise ManifestError(
            f"build {folder.name} serves {', '.join(served)}: make another current with `gemmill builds use`, "
            f"or remove it all the same with `gemmill builds rm --force {folder.name}`"
        )
    for arch in served:
        _marker(arch, home).unlink(missing_ok=True)
    # Renamed first: a listing of the builds sees it whole or not at all.
    gone = work_folder(home or settings.home())
    gone.parent.mkdir(parents=True, exist_ok=True)
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def settle(
    folder: Path, made: Manifest, before: Manifest | None, *, filtered: bool, wanted: bool | None, home: Path
) -> str:
    """Decide whether a new build serves from now on, record the decision, and return a sentence on it.

    `before` served until now. A `wanted` that is not None decides. Else a build takes over that is as complete: it has
    the same selection, whole, or as many variants. Raises ManifestError, OSError.
    """
    if made.is_emulated:
        return _only_named(made)
    if before is None or before.build_id == made.build_id:
        use(folder, home)
        return f"build {made.build_id} serves {made.arch}"
    complete = (made.selection == before.selection and not filtered) or len(made.entries) >= len(before.entries)
    if complete if wanted is None else wanted:
        use(folder, home)
        return (
            f"build {made.build_id} serves {made.arch} from now on, in place of {before.build_id}: "
            f"`gemmill builds use {before.build_id}` goes back"
        )
    use(resolve(before.build_id, home), home)
    return (
        f"build {before.build_id} goes on serving {made.arch}, with {len(before.entries)} variants of {before.selection}: "
        f"`gemmill builds use {made.build_id}` makes this one serve"
    )


def _only_named(manifest: Manifest) -> str:
    """The sentence for an emulated build that is to serve calls by itself."""
    return (
        f"build {manifest.build_id} is for {manifest.made_for}, so it never serves by itself: "
        f"name it with GEMMILL_BUILD={manifest.build_id} or --build {manifest.build_id}"
    )


def _current_build(arch: str, named: str, home: Path | None) -> tuple[Path, Manifest]:
    known = find_builds(home)
    folder = next((folder for folder in known if folder.name == named), None)
    if folder is None:
        raise ManifestError(
            f"build {named!r}, the current one for {arch}, is no longer in {home or settings.home()} "
            f"(there: {_listed(known)}): make another current with `gemmill builds use`, or run `gemmill build`"
        )
    manifest = read_build(folder)
    if manifest.arch != arch:
        raise ManifestError(
            f"build {named}, the current one for {arch}, is for {manifest.arch}: make another current with `gemmill builds use`"
        )
    if manifest.is_emulated:
        raise ManifestError(_only_named(manifest))
    return folder, manifest


def _marker(arch: str, home: Path | None) -> Path:
    return (home or settings.home()) / "current" / arch


def _listed(folders: list[Path]) -> str:
    return ", ".join(folder.name for folder in folders) or "none"


def _shipped() -> Iterator[_Shipped]:
    """The folder of a wheel with all in one, and those of packages of kernels."""
    yield _Shipped(package="gemmill", version=__version__, folder=_INSIDE)
    for point in metadata.entry_points(group=ENTRY_POINTS):
        if point.dist is not None:
            for folder in installed(point.value):
                yield _Shipped(package=point.dist.name, version=point.dist.version, folder=folder / "builds")


def _folders(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (child for child in folder.iterdir() if (child / MANIFEST).is_file())


def _made(folder: Path) -> float:
    try:
        return (folder / MANIFEST).stat().st_mtime
    except FileNotFoundError:  # another process has just taken it away
        return 0.0
