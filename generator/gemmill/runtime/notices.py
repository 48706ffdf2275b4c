"""The messages of gemmill to whoever runs it, through `logging.getLogger("gemmill")`."""

import logging
from pathlib import Path

from gemmill.manifest import Manifest
from gemmill.runtime.tuned import Tuned

LOG = logging.getLogger("gemmill")


def show_choices() -> None:
    """Have messages of level INFO appear: on stderr, where the process has set up no logging of its own."""
    LOG.setLevel(logging.INFO)
    if not LOG.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        LOG.addHandler(handler)


def tell_loaded(manifest: Manifest, tuned: Tuned, folder: Path) -> None:
    """Say which build serves from now on, at level INFO."""
    LOG.info(
        "build %s for %s is loaded from %s: %s variants of %s, %s measured choices, digest %s",
        *(manifest.build_id, manifest.arch, folder, len(manifest.entries), manifest.selection),
        *(len(tuned.choices), tuned.digest),
    )


def tell_quarantined(manifest: Manifest, tuned: Tuned) -> None:
    """Warn of variants that are never chosen, because they went wrong when they were measured."""
    for name, why in tuned.quarantined.items():
        LOG.warning("build %s: %s is quarantined, so it is not chosen: %s", manifest.build_id, name, why)


def tell_unbuilt(manifest: Manifest, tuned: Tuned) -> None:
    """Warn of measured rows of which the build has no variant. The model chooses for their calls, and its choice is
    slower."""
    built = {entry.name for entry in manifest.entries}
    rows = {row.key: row for found in tuned.tables for row in found.table.rows}.values()
    missing = sum(built.isdisjoint(row.variants) for row in rows)
    if missing:
        LOG.warning(
            "build %s (%s variants of %s) has no variant of %s of %s tuned rows for %s, whose shapes run slower than measured: "
            "`gemmill build --arch %s --select default` builds them, `gemmill table show` lists the tables",
            *(manifest.build_id, len(manifest.entries), manifest.selection, missing, len(rows), manifest.arch),
            manifest.arch,
        )
