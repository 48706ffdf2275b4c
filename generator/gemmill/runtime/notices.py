"""gemmill's messages to its users, through `logging.getLogger("gemmill")`."""

import copy
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


class _ToEngine(logging.Handler):
    """Hands messages to the handlers of an engine's logger."""

    def __init__(self, engine: logging.Logger) -> None:
        super().__init__()
        self.engine = engine

    def emit(self, record: logging.LogRecord) -> None:
        """Hand on a message that says from whom it is: engines show a file's name and no logger's."""
        if self.engine.isEnabledFor(record.levelno):
            told = copy.copy(record)
            told.name, told.msg = f"{self.engine.name}.{LOG.name}", f"{LOG.name}: {record.msg}"
            self.engine.handle(told)


def show_in(engine: str) -> None:
    """Have messages appear in an engine's log, from the level on that the engine shows. A second call changes nothing.

    An engine whose logger hands its messages to the process's handlers needs nothing: gemmill's does so, too.
    """
    logger = logging.getLogger(engine)
    if logger.propagate or any(isinstance(handler, _ToEngine) for handler in LOG.handlers):
        return
    LOG.addHandler(_ToEngine(logger))
    if LOG.level == logging.NOTSET:
        LOG.setLevel(logger.getEffectiveLevel())


def tell_loaded(manifest: Manifest, tuned: Tuned, folder: Path) -> None:
    """Say which build serves from now on, at level INFO."""
    LOG.info(
        "build %s for %s is loaded from %s: %s variants of %s, %s measured choices, digest %s",
        *(manifest.build_id, manifest.made_for, folder, len(manifest.entries), manifest.selection),
        *(len(tuned.choices), tuned.digest),
    )
    if manifest.is_emulated:
        LOG.warning(
            "build %s emulates %s on %s: its results count, its times say nothing of %s",
            *(manifest.build_id, manifest.arch, manifest.runs_on, manifest.arch),
        )


def tell_quarantined(manifest: Manifest, tuned: Tuned) -> None:
    """Warn of variants that no call gets, because tuning saw them fail."""
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
