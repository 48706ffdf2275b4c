"""Compilers end with the build that started them, even where a signal kills it before it can stop them.

On Linux the kernel sends a process a signal when the one that started it ends. A build's ninja gets it, and stops its
compilers. Where a signal kills ninja too, each process that compiles a unit gets it, and stops its own compilers, which
are in its group.
"""

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def ends_with_parent() -> Callable[[], None]:
    """The function that a new process runs before its program (`preexec_fn`): SIGTERM comes when this one ends."""
    parent = os.getpid()

    def ask() -> None:
        _ask_for_signal()
        if os.getppid() != parent:  # it has ended meanwhile
            os.kill(os.getpid(), signal.SIGTERM)

    return ask


def end_group_with_parent() -> None:
    """Have this process and all of its group, whose first it is, end with the one that started it, and by SIGTERM."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    _ask_for_signal()


def _ask_for_signal() -> None:
    if hasattr(_LIBC, "prctl"):  # Linux
        _LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))
