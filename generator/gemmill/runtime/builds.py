"""Finding builds on disk."""

from collections.abc import Iterator
from pathlib import Path

from gemmill import settings
from gemmill.manifest import Manifest, ManifestError, read_manifest

MANIFEST = "manifest.json"
_SHIPPED = Path(__file__).resolve().parent.parent / "_builds"


def find_builds(home: Path | None = None) -> list[Path]:
    """Folders with a manifest, newest first: below `home` (default: settings.home()), then those inside a wheel."""
    return sorted(_folders(home or settings.home()), key=_made, reverse=True) + sorted(
        _folders(_SHIPPED.parent, "_builds")
    )


def resolve(named: str | Path) -> Path:
    """The folder of a build given by id or path. Raises ManifestError if there is none."""
    path = Path(named)
    if (path / MANIFEST).is_file():
        return path.resolve()
    known = find_builds()
    for folder in known:
        if folder.name == str(named):
            return folder
    listed = ", ".join(folder.name for folder in known) or "none"
    raise ManifestError(
        f"no build {str(named)!r}: it is neither a folder with a {MANIFEST} nor one of the builds here ({listed})"
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
    return (folder / MANIFEST).stat().st_mtime
