"""Results that outlive the program: a line for each, on disk when it is known. A run goes on from the lines that it finds."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

BEGUN = "begun"
_ADVICE = "take the line out, or name another file with --name"


class _Line(TypedDict):
    """The fields that each line but the first has."""

    kind: str
    key: str


class LinesError(Exception):
    """A file that this run cannot go on from; the text is one sentence."""


class Lines:
    """A file of results by key. A key that began and never ended is not tried again: it hung, or ended the process."""

    def __init__(self, path: Path, setup: Mapping[str, Any]) -> None:
        """Begin, or go on with a file of the same setup. Raises LinesError."""
        self.results: dict[str, dict[str, Any]] = {}
        self.begun: set[str] = set()
        path.parent.mkdir(parents=True, exist_ok=True)
        known = path.read_bytes().splitlines() if path.exists() else []
        # A line of a killed run may be incomplete: its key began and did not end.
        rows = [row for number, line in enumerate(known, start=1) if (row := _parsed(line, path, number)) is not None]
        if rows and rows[0] != dict(setup):
            differs = next(name for name in (*setup, *rows[0]) if rows[0].get(name) != setup.get(name))
            raise LinesError(
                f"{path} is of another run ({differs} was {rows[0].get(differs)!r}, is {setup.get(differs)!r}): "
                "name another with --name"
            )
        for row in rows[1:]:
            if row["kind"] == BEGUN:
                self.begun.add(row["key"])
            else:
                self.results[row["key"]] = row
        self._file = path.open("ab")
        if known and not path.read_bytes().endswith(b"\n"):
            self._file.write(b"\n")
        if not rows:
            self._write(dict(setup))

    @property
    def lost(self) -> list[str]:
        """Keys that began and never ended."""
        return sorted(self.begun - self.results.keys())

    def waits(self, key: str) -> bool:
        """Whether something is still to be done."""
        return key not in self.begun and key not in self.results

    def begin(self, key: str) -> None:
        """Note that something is in progress."""
        self.begun.add(key)
        self._write({"kind": BEGUN, "key": key})

    def end(self, key: str, result: Mapping[str, Any]) -> None:
        """Write an outcome."""
        self.results[key] = {"key": key, **result}
        self._write(self.results[key])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _parsed(line: bytes, path: Path, number: int) -> dict[str, Any] | None:
    """The values of a whole line; None for an incomplete one. Raises LinesError."""
    from gemmill.typed_json import JsonError, MalformedError, as_kind, from_json

    where = f"{path}, line {number}"
    try:
        row = from_json(line, dict[str, Any], where, _ADVICE)
        if number > 1:
            as_kind(row, _Line, where, _ADVICE)
    except MalformedError:
        return None
    except JsonError as error:
        raise LinesError(str(error)) from None
    return row
