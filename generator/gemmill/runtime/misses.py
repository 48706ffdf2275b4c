"""Shapes that no table has, written to a file that `gemmill tune --misses` measures."""

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from gemmill.registry import REGISTRY
from gemmill.runtime.choosing import Trust
from gemmill.runtime.select import Noted

MOST_BYTES = 1 << 20
"""The most bytes of the file, and of one process's part: about ten thousand shapes.

Then recording ends, and the process frees its memory of shapes.
"""


class MissFile:
    """Writes each shape once for each process."""

    least_trust = Trust.NEAREST

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: set[str] = set()
        self._left = MOST_BYTES

    def hear(self, noted: Sequence[Noted]) -> bool:
        """Write new shapes. The result says whether there is room for more."""
        lines = dict.fromkeys(line for choice in noted if (line := _line(choice)) is not None)
        new = [line for line in lines if line not in self._written]
        if new:
            self._write(new)
        if self._left <= 0:
            self._written.clear()
        return self._left > 0

    def _write(self, new: Sequence[str]) -> None:
        data = "".join(f"{line}\n" for line in new).encode()
        self._written.update(new)
        self._left -= len(data)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab+") as file:
                size = file.seek(0, os.SEEK_END)
                if size > MOST_BYTES:
                    self._left = 0
                else:
                    file.write(_after_cut_line(file, size) + data)
        except OSError as error:
            warnings.warn(
                f"gemmill: misses cannot be recorded in {self._path}: {error.strerror}", RuntimeWarning, stacklevel=3
            )


def _after_cut_line(file: IO[bytes], size: int) -> bytes:
    """The bytes that end a line which a kill or a full disk cut, so that it takes no other with it."""
    if size:
        file.seek(size - 1)
    return b"\n" if size and file.read(1) != b"\n" else b""


def _line(noted: Noted) -> str | None:
    """The line of a noted choice; None for an empty call, or one of a class without tuning, since neither can be
    measured.
    """
    call = noted.call
    tuning = REGISTRY.tunings[call.family]
    op = tuning.measured_as(call)
    if op is None or min(call.sizes) == 0:
        return None
    told = {"trust": noted.trust.name.lower(), "call": tuning.describe(call.call_class)}
    return json.dumps({"op": op} | tuning.named(call.sizes) | told)
