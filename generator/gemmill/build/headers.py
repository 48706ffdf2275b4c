"""The headers of an object, except for gemmill's own, which keys of sources cover (`own_code.py`).

They come from the compiler's list, by name and digest.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from gemmill.build.files import FileMemo

HeaderSet = list[list[str]]
"""Rows of root name ("" for the machine's own folders), path below it, SHA-256."""


def read_depfile(text: str) -> list[str]:
    """Paths in a make rule as compilers write it: `object : a.cu \\ a.h ...`, blanks escaped by a backslash."""
    _, _, rest = text.replace("\\\n", " ").partition(":")
    return [item.replace("\\ ", " ").replace("$$", "$") for item in re.findall(r"(?:\\ |\S)+", rest)]


def dependencies(depfile: Path, folder: Path) -> list[Path]:
    """The headers that a depfile names, of a compiler that ran in `folder`. Files of that folder are its sources.

    Raises OSError.
    """
    paths = ((folder / name).resolve() for name in read_depfile(depfile.read_text(encoding="utf-8")))
    return [path for path in paths if not path.is_relative_to(folder.resolve())]


def header_set(paths: Iterable[Path], roots: Mapping[str, Path], memo: FileMemo) -> HeaderSet:
    """Headers with their digests. Raises OSError."""
    by_depth = sorted(roots.items(), key=lambda item: -len(item[1].parts))
    rows: dict[tuple[str, str], str] = {}
    for path in paths:
        root = next(((key, base) for key, base in by_depth if path.is_relative_to(base)), None)
        key = (root[0], path.relative_to(root[1]).as_posix()) if root else ("", str(path))
        rows[key] = memo.get(path)
    return [[*key, value] for key, value in sorted(rows.items())]


def is_current(headers: HeaderSet, roots: Mapping[str, Path], memo: FileMemo) -> bool:
    """Whether this machine has the same headers."""
    try:
        return all(memo.get(roots[root] / path if root else Path(path)) == value for root, path, value in headers)
    except (OSError, KeyError):
        return False


def changed_between(paths: Iterable[Path], since: float, until: float) -> bool:
    """Whether a file was changed or replaced between `since` and `until`, in seconds since the epoch.

    The time is the one that the system notes (ctime), since a file may be dated as one likes. A time later than `until`
    is another clock's. Raises OSError.
    """
    return any(since <= path.stat().st_ctime <= until for path in paths)
