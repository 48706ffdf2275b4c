"""The contents of a build: one JSON next to the extension, from which alone all other code reads about variants."""

from gemmill.manifest.reading import check_extension, open_extension, read_manifest
from gemmill.manifest.schema import (
    EMULATION,
    SCHEMA_VERSION,
    KernelEntry,
    Manifest,
    ManifestError,
    OtherVersionError,
    RejectedEntry,
    Toolchain,
)
from gemmill.manifest.writing import write_manifest
