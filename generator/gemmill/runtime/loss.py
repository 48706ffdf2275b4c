"""The loss of a build at the shapes that tables have, against the fastest variant there, which it may not have."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gemmill.family import ShapedCall
from gemmill.manifest import KernelEntry
from gemmill.registry import REGISTRY
from gemmill.runtime.choosing import choose, model_ns
from gemmill.runtime.table_file import Key, TableRow
from gemmill.runtime.tuned import Tuned, current_row, siblings
from gemmill.runtime.variant_table import VariantTable, make_variant_table

ALIGNED = 16
"""Operands begin at multiples of this many bytes: tuning measures calls aligned as the best variants need it."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """How much longer a build's choices take than the fastest variants of the tables' rows."""

    rows: int
    """Rows for which the build has a variant."""
    none: int
    """Rows for which it has no variant at all."""
    estimated: int
    """Rows whose choice the table did not time. Their time is the model's, or that of the slowest measured variant."""
    mean: float
    """The mean loss of all rows, from the geometric mean of ratios: 0.34 takes 34 % longer."""
    worst: float
    worst_at: str
    """The op and sizes with the largest loss."""

    def __str__(self) -> str:
        lacking = f", and has no variant for {self.none}" if self.none else ""
        return (
            f"loses {self.mean:z.1%} in the mean over {self.rows} measured shapes, {self.worst:z.0%} at worst ({self.worst_at}); "
            f"{self.estimated} of them are estimates{lacking}"
        )


def loss_of(entries: Sequence[KernelEntry], tuned: Tuned, sm_count: int) -> Loss | None:
    """The loss of a build with these entries at the rows of the tables that it loads; None where those have no row."""
    symbols = sorted({entry.symbol for entry in entries})
    table = make_variant_table(entries, symbols, tuned.choices, tuned.quarantined)
    built = {entry.name: entry for entry in entries if entry.name not in tuned.quarantined}
    rows: dict[Key, TableRow] = {}
    for loaded in tuned.tables:
        for row in loaded.table.rows:
            rows.setdefault(row.key, row)
    parts = _by_class(table)
    found = [_answered(row, parts, built, sm_count) for row in rows.values() if siblings(row, exact=True)]
    answered = [(ratio, estimated, row) for row, ratio, estimated in found if ratio is not None]
    if not answered:
        return None
    worst, _, at = max(answered, key=lambda one: one[0])
    return Loss(
        rows=len(answered),
        none=len(found) - len(answered),
        estimated=sum(estimated for _, estimated, _ in answered),
        mean=statistics.geometric_mean(ratio for ratio, *_ in answered) - 1,
        worst=worst - 1,
        worst_at=f"{at.op} {at.shape}",
    )


def _answered(
    row: TableRow, parts: Mapping[tuple[str, int], VariantTable], built: Mapping[str, KernelEntry], sm_count: int
) -> tuple[TableRow, float | None, bool]:
    """The row, how many times as long as its fastest the choice takes (None without one), and whether that is an
    estimate."""
    current = current_row(row, built)
    if current is not None and current.variants[0] == row.variants[0] and row.variants[0] in built:
        return row, 1.0, False  # the result of choosing, a thousand times as fast
    first = siblings(row, exact=True)[0]
    tuning, table = REGISTRY.tunings[first.family], parts.get((first.family, first.call_class))
    if table is None:
        return row, None, False
    alignments = (ALIGNED,) * len(tuning.aligned)
    call = ShapedCall(
        family=first.family, call_class=first.call_class, sizes=tuning.ordered(row.sizes), alignments=alignments
    )
    index = choose(table, call, sm_count)[0]
    if index < 0:
        return row, None, False
    us = _timed(row, table.entries[index].name)
    return row, (us or _estimated(row, table, index, call, sm_count)) / row.us[0], us is None


def _by_class(table: VariantTable) -> dict[tuple[str, int], VariantTable]:
    """A table for each class of calls, since an audit answers hundreds of calls, and each looks at all rows of its
    table.
    """
    members: dict[tuple[str, int], list[int]] = {}
    for i, (row, entry) in enumerate(zip(table.rows, table.entries, strict=True)):
        members.setdefault((entry.family, row.call_class), []).append(i)
    return {
        key: VariantTable(
            rows=tuple(table.rows[i] for i in rows),
            entries=tuple(table.entries[i] for i in rows),
            tuned=tuple(replace(tuned, row=rows.index(tuned.row)) for tuned in table.tuned if tuned.row in rows),
        )
        for key, rows in members.items()
    }


def _timed(row: TableRow, name: str) -> float | None:
    return dict(zip(row.variants, row.us, strict=True)).get(name)


def _estimated(row: TableRow, table: VariantTable, index: int, call: ShapedCall, sm_count: int) -> float:
    """The microseconds that the model expects of a choice, and no fewer than those of the slowest variant of the
    row."""
    return max(row.us[-1], model_ns(table.rows[index], call, sm_count) / 1000)
