"""Records on the disk."""

import json
import os
from pathlib import Path


def write_json(record: dict, path: Path, *, indent: int | None = 1) -> None:
    """Write whole or not at all: temporary name, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            separators = (",", ":") if indent is None else None
            json.dump(record, file, indent=indent, separators=separators, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
