"""The row of a tuned table that a choice rests on."""

from dataclasses import dataclass
from pathlib import Path

from gemmill.runtime.select import Choice
from gemmill.runtime.table_file import Source, TableRow
from gemmill.runtime.tuned import Tuned, siblings


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was measured, where and when."""

    table: Path
    row: TableRow
    source: Source


def evidence_of(choice: Choice, tuned: Tuned) -> Evidence | None:
    """The row behind a choice, in the most preferred of the build's tables that has it; None for a choice of the model."""
    if choice.measured is None or choice.entry is None:
        return None
    for loaded in tuned.tables:
        for row in loaded.table.rows:
            offered = siblings(row, exact=True) if row.sizes == choice.measured else []
            if any(choice.entry.name in choices.names for choices in offered):
                return Evidence(table=loaded.path, row=row, source=loaded.table.sources[row.source])
    return None
