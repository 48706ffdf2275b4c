"""Manifest to JSON: the same manifest gives the same bytes."""

import dataclasses
import json
import os
import uuid
from pathlib import Path

from gemmill.manifest.schema import DIGEST, Manifest, own_digest


def manifest_text(manifest: Manifest) -> str:
    """The JSON text, with a digest of itself."""
    data = dataclasses.asdict(manifest)
    return json.dumps(data | {DIGEST: own_digest(data)}, indent=1, sort_keys=True) + "\n"


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write whole or not at all."""
    write_whole(path, manifest_text(manifest))


def write_whole(path: Path, data: str | bytes) -> None:
    """Write beside `path`, sync, rename: a reader sees the old file or the new one. Raises OSError."""
    temporary = beside(path)
    try:
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def beside(path: Path) -> Path:
    """A name in the same folder that no other process uses."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
