"""Errors of a build: each is one sentence that says why there is none and how to get one."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class BuildError(Exception):
    """The text names the request, the obstacle and the remedy. A failed build leaves nothing half-written."""


def disk_full(doing: str) -> BuildError:
    """The error of a full disk; `doing` names the step that ran out of room."""
    return BuildError(f"the disk is full ({doing}): free some space, or name another folder with GEMMILL_HOME")


@contextmanager
def reported(folder: Path, doing: str) -> Iterator[None]:
    """Turn an OSError on files below `folder` into a BuildError."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        if error.errno in DISK_FULL:
            raise disk_full(f"{doing} in {folder}") from None
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise BuildError(
                f"cannot write {where} ({doing}): {error.strerror}; make it writable, or name another folder with GEMMILL_HOME"
            ) from None
        raise BuildError(f"{doing} failed on {where}: {error.strerror or error}") from None


def first_error(message: str) -> str:
    """The line of a compiler's output that names the fault."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    marks = ("error:", "error   :", "fatal   :", "Error:", "ERROR:")
    return next(
        (line for line in lines if any(mark in line for mark in marks)),
        lines[0] if lines else "the compiler gave no reason",
    )
