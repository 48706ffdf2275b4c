"""Keys of variants' sources, which are kept while no file of gemmill, no compiler and no flag has changed.

To make a key is to render a source. A build without a change renders none.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from gemmill.build.files import RACY_SECONDS, digest
from gemmill.build.sources import Keys
from gemmill.locations import package_dir, templates_dir
from gemmill.ownership import is_trusted
from gemmill.registry import REGISTRY
from gemmill.version import __version__
from gemmill.writing import write_whole

Row = list[str]
"""Path, key and body of a source."""


class KnownSources:
    """The facts of sources that the file `path` keeps, by the names of their kernels.

    It keeps nothing where a family lies outside gemmill's own folders, or a file changed within the last seconds.
    """

    def __init__(self, path: Path, keys: Keys, kernels: Path) -> None:
        self._path = path
        self._changed = False
        states = (
            None
            if any(family.home for family in REGISTRY.families)
            else _states((package_dir(), templates_dir(), kernels))
        )
        made_by = [__version__, asdict(keys.flags), keys.cuda, keys.host, keys.dsl]
        self._stamp = digest(made_by, states) if states is not None else ""
        self._rows = _read(path, self._stamp) if self._stamp else {}

    def get(self, name: str) -> Row | None:
        """The facts of a kernel's source."""
        return self._rows.get(name)

    def keep(self, name: str, row: Row) -> None:
        """Remember a source."""
        self._rows[name] = row
        self._changed = True

    def save(self) -> None:
        """Write the new facts. Raises OSError."""
        if self._stamp and self._changed:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            kept = {"stamp": self._stamp, "rows": self._rows}
            write_whole(self._path, json.dumps({**kept, "digest": digest(kept)}))
            self._changed = False


def _states(folders: Iterable[Path]) -> list[list[str | int]] | None:
    """Size and time of each file; None where one cannot be read, or changed within the last tick of the clock."""
    latest = (time.time() - RACY_SECONDS) * 1e9
    states: list[list[str | int]] = []
    for folder in folders:
        for path in _files(folder):
            try:
                status = path.stat()
            except OSError:  # an editor's lock is a link to nothing, and files may go meanwhile
                return None
            if status.st_mtime_ns > latest:
                return None
            states.append([str(path), status.st_size, status.st_mtime_ns])
    return states


def _files(folder: Path) -> Iterator[Path]:
    for place, inner, names in os.walk(folder):
        inner[:] = sorted(name for name in inner if name != "__pycache__")
        yield from (Path(place, name) for name in sorted(names))


def _read(path: Path, stamp: str) -> dict[str, Row]:
    """The facts under a stamp, or nothing where the file is damaged, or may be other users'."""
    try:
        if not is_trusted(path):
            return {}
        data = json.loads(path.read_text(encoding="utf-8"))
        rows: dict[str, Row] = data["rows"]
        whole = data["digest"] == digest({"stamp": data["stamp"], "rows": rows})
        return rows if whole and data["stamp"] == stamp else {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}
