"""Finding builds on disk."""

import os
from collections.abc import Iterator
from pathlib import Path

from gemmill import settings
from gemmill.manifest import Manifest, ManifestError, read_manifest

MANIFEST = "manifest.json"
_SHIPPED = Path(__file__).resolve().parent.parent / "_builds"


def find_builds(home: Path | None = None) -> list[Path]:
    """Folders with a manifest, newest first: below `home` (default: settings.home()), then those inside a wheel.
    Raises ManifestError where the home cannot be looked into."""
    home = home or settings.home()
    try:
        own = sorted(_folders(home), key=_made, reverse=True)
    except OSError as error:
        raise ManifestError(
            f"cannot look for builds in {home} ({error.strerror}): name another folder with GEMMILL_HOME"
        ) from None
    return own + sorted(_folders(_SHIPPED.parent, "_builds"))


def resolve(named: str | Path) -> Path:
    """The folder of a build given by its id, or by a path, which a text is that has a separator in it. Raises
    ManifestError if there is none."""
    if isinstance(named, Path) or os.sep in named:
        if (Path(named) / MANIFEST).is_file():
            return Path(named).resolve()
        raise ManifestError(f"no build at {named}: it is no folder with a {MANIFEST}")
    known = find_builds()
    for folder in known:
        if folder.name == named:
            return folder
    listed = ", ".join(folder.name for folder in known) or "none"
    raise ManifestError(
        f"no build {named!r}: it is not the id of one of the builds here ({listed}); a folder is named by a path, "
        f"as .{os.sep}{named}"
    )


def newest(arch: str | None) -> tuple[Path, Manifest]:
    """The newest readable build for an architecture (any, if None). Raises ManifestError with what was found."""
    refused = []
    for folder in find_builds():
        try:
            manifest = read_manifest(folder / MANIFEST)
        except ManifestError as error:
            refused.append(str(error))
            continue
        if arch in (None, manifest.arch):
            return folder, manifest
        refused.append(f"{folder.name} is for {manifest.arch}")
    found = f" ({'; '.join(refused)})" if refused else ""
    wanted = f" for {arch}" if arch else ""
    raise ManifestError(
        f"no build of gemmill{wanted} in {settings.home()}{found}: run `gemmill build`, or name one with GEMMILL_BUILD"
    )


def _folders(home: Path, below: str = "builds") -> Iterator[Path]:
    folder = home / below
    if folder.is_dir():
        yield from (child for child in folder.iterdir() if (child / MANIFEST).is_file())


def _made(folder: Path) -> float:
    try:
        return (folder / MANIFEST).stat().st_mtime
    except FileNotFoundError:  # another process has just taken it away
        return 0.0
