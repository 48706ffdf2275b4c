"""Reasons why a compilation gave no object: only the compiler's own words on a source blame the source."""

import errno
import os
import re
from enum import StrEnum

from gemmill.build.errors import DISK_FULL

_ABOUT_SOURCE = re.compile(
    r"ptxas (error|\S+, line \d+; error)\s*:"  # ptxas error   : Entry function 'f' uses too much shared data
    r"|\S.*?(\(\d+\)|:\d+(:\d+)?): (fatal |catastrophic |internal compiler )?error\b",  # a.cu(3): error: ... a.h:3:1: error: ...
    re.IGNORECASE,
)
_OF_MACHINE = tuple(
    os.strerror(number)
    for number in (
        *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE),
        *(errno.ENOMEM, errno.ESTALE, errno.ETXTBSY, errno.ENOEXEC, errno.EFBIG, errno.ENODEV),
    )
)
"""Texts of the system's refusals. A missing file is among them, since headers belong to the machine."""
_FULL = tuple(os.strerror(number) for number in DISK_FULL)
_KILLED = ("Killed", "died due to signal", "annot allocate memory")


class Failure(StrEnum):
    """Why there is no object."""

    SOURCE = "source"
    """The compiler refuses the text: it will refuse it again."""
    KILLED = "killed"
    """The compiler was killed, most likely for want of memory."""
    DISK_FULL = "diskfull"
    CHANGED = "changed"
    """A header was edited while the compiler ran."""
    TOOL = "tool"
    """A program could not be run, or failed for a reason of its own, or a file could not be written."""


class CompileError(Exception):
    """There is no object; the text is the compiler's output, or the fault of the machine or its tools."""

    def __init__(self, message: str, failure: Failure = Failure.TOOL) -> None:
        super().__init__(message)
        self.failure = failure


def failure_of_compiler(exit_code: int, message: str) -> Failure:
    """The meaning of a compiler's end, by its exit code and its English output."""
    if any(text in message for text in _FULL):
        return Failure.DISK_FULL
    if exit_code < 0 or any(text in message for text in _KILLED):
        return Failure.KILLED
    lines = message.splitlines()
    if any(_ABOUT_SOURCE.match(line) and not any(text in line for text in _OF_MACHINE) for line in lines):
        return Failure.SOURCE
    # A shell between nvcc and its parts reports a signal as 128 and more, ptxas an error as 255.
    return Failure.KILLED if exit_code > 128 else Failure.TOOL


def failure_of_exception(error: BaseException) -> Failure:
    """The meaning of an exception from a compiler in Python, or from the handling of files."""
    text = str(error)
    if getattr(error, "errno", None) in DISK_FULL or any(sentence in text for sentence in _FULL):
        return Failure.DISK_FULL
    if isinstance(error, OSError | MemoryError) or any(sentence in text for sentence in _OF_MACHINE):
        return Failure.TOOL
    return Failure.SOURCE
