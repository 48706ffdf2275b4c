"""Choices that extensions note, passed on to listeners.

An extension notes a call when it chooses for it; calls whose choice it remembers cost nothing more. A background thread
collects the notes, so a killed process loses a few seconds of them.
"""

import atexit
import os
import threading
from collections.abc import Sequence
from typing import Protocol

from gemmill.runtime.choosing import Trust
from gemmill.runtime.library import Build
from gemmill.runtime.select import Noted

PERIOD_SECONDS = 5.0
MOST_NOTED = 1024
"""The most choices that an extension notes between two periods. It drops more, and notes them at their next choice."""


class Listener(Protocol):
    """A receiver of noted choices."""

    least_trust: Trust
    """The trust of the wanted choices: those that rest on no more than this."""

    def hear(self, noted: Sequence[Noted]) -> bool:
        """Take new choices. Returns whether it wants more."""
        ...


class Notes:
    """The notes of all builds added to it, also in a forked process."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = list(listeners)
        self._builds: list[Build] = []
        self._begin()
        atexit.register(self.flush)
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Make a lock that nobody holds, and a thread. A fork takes neither the parent's thread along nor its lock's
        holder."""
        self._lock = threading.Lock()
        if self._listeners:
            self._end = threading.Event()
            threading.Thread(target=self._run, name="gemmill-notes", daemon=True).start()

    def add(self, build: Build) -> None:
        """Have a build note its choices from now on."""
        with self._lock:
            if self._listeners:
                build.note_choices(MOST_NOTED, self._least_trust())
                self._builds.append(build)

    def flush(self) -> None:
        """Hand on the notes since the last time."""
        with self._lock:
            noted = [choice for build in self._builds for choice in build.take_noted(MOST_NOTED)]
            for listener in list(self._listeners) if noted else ():
                heard = [choice for choice in noted if choice.trust.value >= listener.least_trust.value]
                if not listener.hear(heard):
                    self._listeners.remove(listener)
            if not self._listeners:
                self._stop()

    def _least_trust(self) -> Trust:
        return min((listener.least_trust for listener in self._listeners), key=lambda trust: trust.value)

    def _stop(self) -> None:
        """Note nothing more, and forget."""
        for build in self._builds:
            build.note_choices(0)
        self._builds.clear()
        self._listeners.clear()
        self._end.set()

    def close(self) -> None:
        """Hand on the rest and end the thread."""
        self.flush()
        with self._lock:
            self._stop()
        atexit.unregister(self.flush)

    def _run(self) -> None:
        end = self._end
        while not end.wait(PERIOD_SECONDS):
            self.flush()
