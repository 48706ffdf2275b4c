"""A shard written tensor by tensor that appears whole, and the journal of a conversion that can continue."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Any

from torch import Tensor

from gemmill.checkpoints.file import CheckpointError, Stored, bytes_of, header_of, opened, parsed_json
from gemmill.writing import hold

_COPIED = 1 << 24
"""The most bytes in one copy."""
SYNCED = 1 << 30
"""Bytes after which the writer syncs its output to the disk and notes it as done."""


class FilePlaces:
    """The places of an output file's tensors."""

    def __init__(self, tensors: dict[str, tuple[str, tuple[int, ...]]], metadata: dict[str, str]) -> None:
        """tensors: dtype (a word) and shape by key. metadata: those of the source file."""
        self.header, self.places = header_of(tensors, metadata)
        self.size = max((stop for _, stop in self.places.values()), default=len(self.header))
        self.data_bytes = self.size - len(self.header)


def partial_of(path: Path) -> Path:
    """Where an output file lies until it is whole."""
    return path.with_name(f".{path.name}.partial")


class Shard:
    """One output file. It takes its place on the disk before it writes the first tensor."""

    def __init__(self, path: Path, layout: FilePlaces, *, goes_on: bool) -> None:
        """`goes_on`: keep the output of an earlier process."""
        self.path, self._places, self._partial = path, layout.places, partial_of(path)
        self._file = self._partial.open("r+b" if goes_on else "w+b", buffering=0)
        if not goes_on:
            with told_of_space(path):
                os.posix_fallocate(self._file.fileno(), 0, layout.size)
                self._put(memoryview(layout.header), 0)

    def write(self, name: str, tensor: Tensor) -> None:
        """Put a tensor, contiguous and on the CPU, into its place."""
        start, stop = self._places[name]
        assert tensor.nbytes == stop - start
        self._put(bytes_of(tensor), start)

    def copy(self, name: str, stored: Stored) -> None:
        """Put another file's tensor into its place, as it is."""
        start, _ = self._places[name]
        with opened(stored.path) as source:
            source.seek(stored.start)
            done = 0
            while done < stored.nbytes:
                part = source.read(min(_COPIED, stored.nbytes - done))
                if not part:
                    raise CheckpointError(f"{stored.path} became shorter while it was read: {name} is cut off")
                self._put(memoryview(part), start + done)
                done += len(part)

    def _put(self, data: memoryview, at: int) -> None:
        with told_of_space(self.path):
            while data:
                count = os.pwrite(self._file.fileno(), data, at)
                data, at = data[count:], at + count

    def sync(self) -> None:
        """Sync the output to the disk."""
        with told_of_space(self.path):
            os.fsync(self._file.fileno())

    def publish(self) -> None:
        """Let the file appear."""
        self.close()
        self._partial.replace(self.path)

    def close(self) -> None:
        """Sync, and keep the output for a later process."""
        if not self._file.closed:
            self.sync()
            self._file.close()


_GOES_ON = "free some and run the same again, which goes on where this ended"


@contextmanager
def told_of_space(path: Path, remedy: str = _GOES_ON) -> Iterator[None]:
    """A full disk in a sentence, with the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno not in (ENOSPC, EDQUOT):
            raise
        raise CheckpointError(f"no space is left for {path}: {remedy}") from None


def refuse_without_space(folder: Path, needed: int) -> None:
    """Refuse a folder that has less room than the output needs. Raises CheckpointError."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise CheckpointError(
            f"{folder} has no space left for the checkpoint: it takes {needed} bytes and {free} are free; nothing was written"
        )


class Journal:
    """The journal of a conversion: the finished steps, on disk. One process at a time holds it."""

    def __init__(self, path: Path, digest: str) -> None:
        """Open or begin a journal. Raises CheckpointError where another process has it, or where it is of another
        conversion.
        """
        self.path, self._pending = path, list[dict[str, Any]]()
        self._file = path.open("a+", encoding="utf-8")
        try:
            held, why = hold(self._file), ""
        except OSError as error:
            held, why = False, f"{path} cannot be locked ({error.strerror}): convert to a file system that has locks"
        if not held:
            self._file.close()
            raise CheckpointError(why or f"another process is converting to {path.parent}: wait for it")
        self._file.seek(0)
        lines = [_parsed(line) for line in self._file]
        is_new = lines[:1] in ([], [None])  # or its first line was cut off
        if not is_new and lines[0] != {"digest": digest}:
            self._file.close()
            raise CheckpointError(
                f"{path} is of another conversion, which did not end: remove it and start anew, or ask for the same as then"
            )
        self.done = {line["step"]: line.get("error") for line in lines[1:] if line and "step" in line}
        """The figures of each finished step, by its key; None for a step without figures."""
        if is_new:
            self._file.truncate(0)
            self._write([{"digest": digest}])

    def note(self, step: str, error: dict[str, Any] | None) -> None:
        """Note a step with written data, though not yet on the disk."""
        self.done[step] = error
        self._pending.append({"step": step, "error": error})

    def commit(self) -> None:
        """Sync all notes to the disk."""
        self._write(self._pending)
        self._pending = []

    def _write(self, lines: list[dict[str, Any]]) -> None:
        with told_of_space(self.path):
            self._file.writelines(json.dumps(line) + "\n" for line in lines)
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self, *, remove: bool) -> None:
        """Close the journal; remove it where the conversion has ended."""
        if remove:
            self.path.unlink()
        self._file.close()


def _parsed(line: str) -> dict[str, Any] | None:
    """The row of a line; None for a truncated one."""
    parsed = parsed_json(line)
    return parsed if isinstance(parsed, dict) else None
