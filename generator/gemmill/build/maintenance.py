"""Maintenance of the cache: its contents, damaged files, and files to remove."""

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gemmill import settings
from gemmill.build.cache import read_entry, read_headers
from gemmill.build.errors import reported
from gemmill.build.files import file_digest
from gemmill.writing import is_left

_DAY = 24 * 3600


@dataclass(frozen=True, kw_only=True)
class CachedObject:
    """One object of the cache."""

    key: str
    names: tuple[str, ...]
    """The variants or files in it."""
    object_bytes: int
    cpu_seconds: float
    """CPU seconds that compiling it again would take."""
    used: float
    """When a build last used it, in seconds since the epoch."""


@dataclass(frozen=True, kw_only=True)
class CacheReport:
    """The files that a verb kept in a cache, and those that it removed."""

    kept: int
    removed: tuple[str, ...]
    """Keys of objects."""
    freed_bytes: int


def cache_list(home: Path | None = None) -> tuple[CachedObject, ...]:
    """The objects of the cache, the latest used first. Raises BuildError."""
    cache = _cache(home)
    with reported(cache, "reading the cache"):
        found = [
            CachedObject(
                key=entry.key,
                names=tuple(entry.members.values()),
                object_bytes=entry.object_bytes,
                cpu_seconds=entry.cpu_seconds,
                used=(folder / "entry.json").stat().st_mtime,
            )
            for folder in _object_folders(cache)
            if (entry := read_entry(folder))
        ]
    return tuple(sorted(found, key=lambda item: (-item.used, item.key)))


def cache_verify(home: Path | None = None) -> CacheReport:
    """Read every object, and remove those that do not match their entry, and lists of headers that do not match their
    name.

    Raises BuildError.
    """
    cache = _cache(home)
    with reported(cache, "verifying the cache"):
        damaged = [folder for folder in _object_folders(cache) if not _is_whole(cache, folder)]
        for path in cache.glob("headers/*.json"):
            if read_headers(cache, path.stem) is None:
                path.unlink(missing_ok=True)
        return _remove(cache, damaged)


def cache_gc(
    home: Path | None = None, *, max_age_days: float | None = 30.0, max_bytes: int | None = None
) -> CacheReport:
    """Remove objects that no build has used for `max_age_days`, and the remains of killed builds.

    The longest unused objects then go until the rest has `max_bytes` or less. Builds stay: they do not need the cache.
    Raises BuildError.
    """
    cache = _cache(home)
    now = time.time()
    with reported(cache, "cleaning the cache"):
        remove_stale(cache.parent)
        goes, room = [], max_bytes
        for item in cache_list(cache.parent):
            too_old = max_age_days is not None and now - item.used > max_age_days * _DAY
            too_much = room is not None and item.object_bytes > room
            if too_old or too_much:
                goes.append(cache / "objects" / item.key)
                room = 0 if too_much else room  # objects with an earlier last use go too, however small
            elif room is not None:
                room -= item.object_bytes
        return _remove(cache, goes)


def remove_stale(home: Path) -> None:
    """Delete the remains of killed builds: working folders of processes that have ended, and files older than a day."""
    for folder in [*home.glob("work/*"), *home.glob("cache/objects/.*")]:
        with suppress(OSError):  # another process was quicker
            if is_left(folder) or time.time() - folder.stat().st_mtime > _DAY:
                shutil.rmtree(folder, ignore_errors=True)


def _cache(home: Path | None) -> Path:
    return (home or settings.home()).absolute() / "cache"


def _object_folders(cache: Path) -> list[Path]:
    return sorted(folder for folder in cache.glob("objects/*") if not folder.name.startswith("."))


def _is_whole(cache: Path, folder: Path) -> bool:
    entry = read_entry(folder)
    try:
        return (
            entry is not None
            and read_headers(cache, entry.headers) is not None
            and file_digest(folder / "object.o") == entry.object_sha256
        )
    except OSError:
        return False


def _remove(cache: Path, folders: list[Path]) -> CacheReport:
    freed = 0
    for folder in folders:
        freed += sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
        shutil.rmtree(folder, ignore_errors=True)
    kept = {folder.name for folder in _object_folders(cache)}
    for marker in cache.glob("index/*/*"):
        if marker.name not in kept:
            marker.unlink(missing_ok=True)
    headers = {entry.headers for folder in _object_folders(cache) if (entry := read_entry(folder))}
    for path in cache.glob("headers/*.json"):
        # A new one may belong to an object that another process is about to publish.
        if path.stem not in headers and time.time() - path.stat().st_mtime > _DAY:
            path.unlink(missing_ok=True)
    return CacheReport(kept=len(kept), removed=tuple(sorted(folder.name for folder in folders)), freed_bytes=freed)
