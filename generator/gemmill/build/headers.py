"""The headers that an object was made from. They are read from the compiler's list, and kept by name and digest."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gemmill.build.files import FileMemo

_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)

HeaderSet = list[list[str]]
"""Rows of root name ("" for the machine's own folders), path below it, SHA-256."""


def read_depfile(text: str) -> list[str]:
    """Paths in a make rule as compilers write it: `object : a.cu \\ a.h ...`, blanks escaped by a backslash."""
    _, _, rest = text.replace("\\\n", " ").partition(":")
    return [item.replace("\\ ", " ").replace("$$", "$") for item in re.findall(r"(?:\\ |\S)+", rest)]


def header_set(depfile: Path, folder: Path, roots: Mapping[str, Path], memo: FileMemo) -> HeaderSet:
    """The headers that a depfile names, of a compiler that ran in `folder`. Files of that folder are its sources.

    Raises OSError.
    """
    by_depth = sorted(roots.items(), key=lambda item: -len(item[1].parts))
    rows: dict[tuple[str, str], str] = {}
    for name in read_depfile(depfile.read_text(encoding="utf-8")):
        path = (folder / name).resolve()
        if path.is_relative_to(folder.resolve()):
            continue
        root = next(((key, base) for key, base in by_depth if path.is_relative_to(base)), None)
        key = (root[0], path.relative_to(root[1]).as_posix()) if root else ("", str(path))
        rows[key] = memo.get(path)
    return [[*key, value] for key, value in sorted(rows.items())]


def included(text: str, folders: Sequence[Path]) -> set[Path]:
    """Files below the folders that a C++ text includes by name in quotes, itself or through one another. Raises OSError."""
    found: set[Path] = set()
    waiting = [text]
    while waiting:
        for name in _INCLUDE.findall(waiting.pop()):
            path = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if path is not None and path not in found:
                found.add(path)
                waiting.append(path.read_text(encoding="utf-8"))
    return found


def is_current(headers: HeaderSet, roots: Mapping[str, Path], memo: FileMemo) -> bool:
    """Whether this machine has the same headers."""
    try:
        return all(memo.get(roots[root] / path if root else Path(path)) == value for root, path, value in headers)
    except (OSError, KeyError):
        return False


def changed_between(headers: HeaderSet, roots: Mapping[str, Path], since: float, until: float) -> bool:
    """Whether a header was changed or replaced between `since` and `until`, in seconds since the epoch.

    The time is the one that the system notes (ctime), since a file may be dated as one likes. A time later than `until`
    is another clock's. Raises OSError.
    """
    paths = (roots[root] / path if root else Path(path) for root, path, _ in headers)
    return any(since <= path.stat().st_ctime <= until for path in paths)
