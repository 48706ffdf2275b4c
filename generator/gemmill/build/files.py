"""Digests of files, with a memo, and files that must reach the disk."""

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from gemmill.ownership import is_trusted
from gemmill.writing import write_whole

RACY_SECONDS = 2.0
"""A file that changed this recently may change again and keep its time."""


def digest(*parts: Any) -> str:
    """SHA-256 over values that JSON can hold; different lists of parts have different digests."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_file(path: Path) -> None:
    """Sync another program's file to the disk, so that a rename cannot publish an empty file after a crash.

    Raises OSError.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())


class FileMemo:
    """Values computed from files' bytes. Each is kept while the file's path, size and modification time stay the same."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = False
        self._checked: dict[str, Any] = {}
        self._known: dict[str, list[Any]] = _read_memo(path)

    def get(self, path: Path, compute: Any = file_digest, *, kind: str = "sha256") -> Any:
        """`compute(path)`, or its earlier value while the file is unchanged. Raises OSError where the file is gone."""
        key = f"{kind}:{path}"
        if key in self._checked:
            return self._checked[key]
        status = path.stat()
        stamp = [status.st_size, status.st_mtime_ns]
        known = self._known.get(key)
        if known is not None and known[:2] == stamp:
            value = known[2]
        else:
            value = compute(path)
            # A file changed this recently may change again within the same clock tick: do not remember it.
            if time.time() - status.st_mtime > RACY_SECONDS:
                self._known[key] = [*stamp, value]
                self._changed = True
        self._checked[key] = value
        return value

    def forget_checks(self) -> None:
        """Look at the files again on the next `get`."""
        self._checked.clear()

    def save(self) -> None:
        """Write the new digests. The last of several processes wins; the others compute theirs again. Raises OSError."""
        if self._changed:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps({"known": self._known, "digest": digest(self._known)}))
            self._changed = False


def _read_memo(path: Path) -> dict[str, list[Any]]:
    """The contents of a memo, or nothing where the file is damaged or may be other users'. All of it can be computed
    again.
    """
    try:
        if not is_trusted(path):
            return {}
        data = json.loads(path.read_text(encoding="utf-8"))
        known: dict[str, list[Any]] = data["known"]
        return known if data["digest"] == digest(known) else {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}
