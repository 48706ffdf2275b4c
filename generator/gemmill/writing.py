"""Files that appear whole or not at all, and the folders for making them."""

import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

_PROC = Path("/proc")


def write_whole(path: Path, data: str | bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file next to `path`, sync, rename: a reader sees the old file or the new one. Raises OSError.

    It makes and writes one part at a time.
    """
    data = data.encode() if isinstance(data, str) else data
    temporary = beside(path)
    try:
        with temporary.open("wb") as file:
            for part in (data,) if isinstance(data, bytes) else data:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def hold(file: IO[Any]) -> bool:
    """Lock an open file for this process, which gives it up when it ends or closes it. Returns False where another has it.

    NFS locks it for all its clients. Raises OSError on a file system without locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def beside(path: Path) -> Path:
    """A name in the same folder that no other process uses."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")


def work_folder(home: Path) -> Path:
    """A name below a home's work/ that no other process uses. It names its owner: machine, process, and its start."""
    return home / "work" / f"{_machine()}.{os.getpid()}.{_start_of(os.getpid())}.{uuid.uuid4().hex}"


def is_left(folder: Path) -> bool:
    """Whether the process of this machine that made a work folder has ended. False for another machine's, of which it
    knows nothing.
    """
    machine, _, rest = folder.name.partition(".")
    process, _, rest = rest.partition(".")
    is_ours = machine == _machine() and process.isdecimal()
    return is_ours and _start_of(int(process)) != rest.partition(".")[0]


def _machine() -> str:
    """A digest of the scope of process numbers: the machine since it was started, and in it the container."""
    parts = [os.uname().nodename]
    with suppress(OSError):
        parts += [(_PROC / "sys/kernel/random/boot_id").read_text(), str((_PROC / "self/ns/pid").readlink())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _start_of(process: int) -> str:
    """When a process of this machine was started, as the kernel counts; empty where it has ended."""
    try:
        fields = (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
