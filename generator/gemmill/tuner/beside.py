"""`gemmill.tune`: times variants during a server's warm-up, and lets the builds of the same process use the results."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gemmill.manifest import read_manifest
from gemmill.runtime.builds import MANIFEST, resolve
from gemmill.runtime.ops import active, read_tables
from gemmill.runtime.table_file import TableRow
from gemmill.tuner.program import TuneRequest, tune
from gemmill.tuner.shapes import workloads_of_rows
from gemmill.tuner.sweep import SweepOptions


def tune_shapes(
    shapes: Iterable[Mapping[str, Any]], build: str | Path | None, table: Path | None, candidates: int
) -> list[TableRow]:
    """The rows that tables then have for the shapes. See `gemmill.tune`."""
    workloads = workloads_of_rows(shapes)
    folder = resolve(build) if build is not None else active().folder
    builds = [(folder, read_manifest(folder / MANIFEST))]
    options = SweepOptions(most=candidates, peers=False)
    found = tune(TuneRequest(workloads=workloads, builds=builds, options=options, table=table))
    read_tables()
    return [row for _, measured in found.tables for row in measured.rows]
