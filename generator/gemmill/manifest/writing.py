"""Manifest to JSON: the same manifest gives the same bytes."""

import dataclasses
import json
import os
from pathlib import Path

from gemmill.manifest.schema import DIGEST, Manifest, own_digest


def manifest_text(manifest: Manifest) -> str:
    """The JSON text, with a digest of itself."""
    data = dataclasses.asdict(manifest)
    return json.dumps(data | {DIGEST: own_digest(data)}, indent=1, sort_keys=True) + "\n"


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write whole or not at all: temporary name, fsync, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(manifest_text(manifest))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
