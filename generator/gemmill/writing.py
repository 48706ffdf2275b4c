"""Files that appear whole or not at all."""

import os
import uuid
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, data: str | bytes | Iterable[bytes | memoryview]) -> None:
    """Write beside `path`, sync, rename: a reader sees the old file or the new one. Raises OSError.

    Of parts one at a time is made and written.
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


def beside(path: Path) -> Path:
    """A name in the same folder that no other process uses."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
