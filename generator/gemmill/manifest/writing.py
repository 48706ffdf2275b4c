"""Manifest to JSON: the same manifest gives the same bytes."""

import dataclasses
import json
from pathlib import Path

from gemmill.manifest.schema import DIGEST, Manifest, own_digest
from gemmill.writing import write_whole


def manifest_text(manifest: Manifest) -> str:
    """The JSON text, with a digest of itself."""
    data = dataclasses.asdict(manifest)
    return json.dumps(data | {DIGEST: own_digest(data)}, indent=1, sort_keys=True) + "\n"


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write whole or not at all."""
    write_whole(path, manifest_text(manifest))
