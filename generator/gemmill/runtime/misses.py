"""Shapes that no table has, written to a file that `gemmill tune --misses` measures.

The extension notes a call when it chooses for it and the choice is not exact; calls that it has chosen for before cost
nothing more. A background thread writes what was noted, so a process that is killed loses a few seconds of it.
"""

import atexit
import json
import os
import threading
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from gemmill.family import ProblemCall
from gemmill.registry import REGISTRY
from gemmill.runtime.library import Build
from gemmill.runtime.select import Trust

PERIOD_SECONDS = 5.0
MOST_NOTED = 1024
"""In the extension, between two periods; more are dropped, and noted when they are chosen for again."""
MOST_BYTES = 1 << 20
"""Of the file, and of what one process writes: about ten thousand shapes. Then recording ends, and what it remembered goes."""


class Recorder:
    """Writes the misses of the builds given to it, in a process that is forked too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._builds: list[Build] = []
        self._written: set[str] = set()
        self._left = MOST_BYTES
        self._begin()
        atexit.register(self.flush)
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """A lock that nobody holds, and a thread: a fork takes neither the parent's thread along nor its lock's holder."""
        self._lock = threading.Lock()
        if self._left > 0:
            self._end = threading.Event()
            threading.Thread(target=self._run, name="gemmill-misses", daemon=True).start()

    def add(self, build: Build) -> None:
        """Record a build's misses from now on."""
        with self._lock:
            if self._left > 0:
                build.record_misses(MOST_NOTED)
                self._builds.append(build)

    def flush(self) -> None:
        """Write what was noted since; each shape once for each process."""
        with self._lock:
            lines = [line for build in self._builds for line in _lines(build.take_misses(MOST_NOTED))]
            new = [line for line in dict.fromkeys(lines) if line not in self._written]
            if new:
                self._write(new)

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
        if self._left <= 0:
            self._stop()

    def _stop(self) -> None:
        """Note nothing more, and forget."""
        self._left = 0
        for build in self._builds:
            build.record_misses(0)
        self._builds.clear()
        self._written.clear()
        self._end.set()

    def close(self) -> None:
        """Write the rest and end the thread."""
        self.flush()
        with self._lock:
            self._stop()
        atexit.unregister(self.flush)

    def _run(self) -> None:
        end = self._end
        while not end.wait(PERIOD_SECONDS):
            self.flush()


def _after_cut_line(file: IO[bytes], size: int) -> bytes:
    """An end for a line that a kill or a full disk cut, so that it takes no other with it."""
    if size:
        file.seek(size - 1)
    return b"\n" if size and file.read(1) != b"\n" else b""


def _lines(misses: Iterable[tuple[ProblemCall, Trust]]) -> list[str]:
    return [line for call, trust in misses if (line := _line(call, trust)) is not None]


def _line(call: ProblemCall, trust: Trust) -> str | None:
    """None for a call of a class that is not tuned, or of nothing: nothing can be measured."""
    tuning = REGISTRY.tunings[call.family]
    op = tuning.measured_as(call)
    if op is None or min(call.sizes) == 0:
        return None
    told = {"trust": trust.name.lower(), "call": tuning.describe(call.problem)}
    return json.dumps({"op": op} | tuning.named(call.sizes) | told)
