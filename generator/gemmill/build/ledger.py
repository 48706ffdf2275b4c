"""The ledger of variants that do not compile. A build does not try them again with the same source and toolchain."""

import json
from collections.abc import Mapping
from pathlib import Path

from gemmill.build.files import digest
from gemmill.build.sources import Source
from gemmill.writing import write_whole

_FORMAT = 2
"""Rows of the first format held failures of the machine too."""


class Ledger:
    """Failures below the cache folder, one file each.

    A failed compilation leaves no list of headers, so the ledger files a failure under the source's key, which covers
    gemmill's own headers, and the CUTLASS version. Editing a header gives the variants that include it another try.
    """

    def __init__(self, folder: Path, cutlass_version: str) -> None:
        self._folder = folder / "ledger"
        self._context = digest(_FORMAT, cutlass_version)

    def _path(self, source_key: str) -> Path:
        return self._folder / f"{digest(source_key, self._context)}.json"

    def known_error(self, source: Source) -> str | None:
        """The first error line of a source that failed before, or None."""
        try:
            error = json.loads(self._path(source.key).read_text(encoding="utf-8"))["error"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return error if isinstance(error, str) else None

    def record(self, source: Source, error: str) -> None:
        """Remember a failure. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        row: Mapping[str, str] = {"name": source.name, "error": error}
        write_whole(self._path(source.key), json.dumps(row, indent=1))
