"""The flat table that the extension selects from: one row for each variant and class of calls it serves."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from gemmill.family import Row
from gemmill.manifest import KernelEntry
from gemmill.registry import REGISTRY
from gemmill.runtime.tuned import TunedChoice


@dataclass(frozen=True, kw_only=True)
class TunedRow:
    """A measured choice: at these sizes a row of the table was the fastest."""

    call_class: int
    """The number of the class, which the family gives."""
    sizes: tuple[int, ...]
    """Sizes in the order of their names."""
    row: int
    """The index of the row."""
    exact: bool
    """Whether the row was the fastest. Else that one has changed since, and this was nearly as fast."""


@dataclass(frozen=True, kw_only=True)
class VariantTable:
    """Rows with the entry that each stands for, and the measured choices among them. Rows of a family are
    neighbours."""

    rows: tuple[Row, ...]
    entries: tuple[KernelEntry, ...]
    """The entry of each row."""
    tuned: tuple[TunedRow, ...]
    quarantined: Mapping[str, str] = field(default_factory=dict)
    """Why no call gets each quarantined variant, by name."""

    @cached_property
    def families(self) -> dict[str, range]:
        """The rows of each family."""
        names = [entry.family for entry in self.entries]
        first = {name: names.index(name) for name in dict.fromkeys(names)}
        return {name: range(start, start + names.count(name)) for name, start in first.items()}

    def of(self, family: str) -> Iterator[tuple[int, Row, KernelEntry]]:
        """The rows of a family with their indices and entries."""
        return ((i, self.rows[i], self.entries[i]) for i in self.families.get(family, ()))

    def rows_of(self, name: str) -> list[int]:
        """The indices of a variant's rows, which are neighbours, in the order of their classes."""
        return [i for i, entry in enumerate(self.entries) if entry.name == name]


def make_variant_table(
    entries: Iterable[KernelEntry],
    kernels: Sequence[str],
    tuned: Iterable[TunedChoice],
    quarantined: Mapping[str, str] | None = None,
) -> VariantTable:
    """The table for the kernels of an extension, `kernels` being their symbols in its order.

    `quarantined` has the variants that no call gets, and why; no measured choice names one.
    """
    index = {symbol: i for i, symbol in enumerate(kernels)}
    known, chosen = list(entries), list(tuned)
    withheld = _without_needed(known) | dict(quarantined or {})
    rows: list[Row] = []
    owners: list[KernelEntry] = []
    tuned_rows: list[TunedRow] = []
    for family, tuning in REGISTRY.choices.items():
        place: dict[tuple[int, str], int] = {}
        for entry in known:
            if entry.family == family:
                for row in tuning.rows(entry.config, index[entry.symbol]):
                    place[row.call_class, entry.name] = len(rows)
                    rows.append(replace(row, quarantined=True) if entry.name in withheld else row)
                    owners.append(entry)
        # Sorted by the choices: where two weights are equally near, the first is taken.
        for choice in sorted((c for c in chosen if c.family == family), key=lambda c: c.key):
            places = (place.get((choice.call_class, name)) for name in choice.names)
            found = next((at for at in places if at is not None and not rows[at].held_only), None)
            if found is not None:
                sizes = tuning.ordered(choice.sizes)
                tuned_rows.append(TunedRow(call_class=choice.call_class, sizes=sizes, row=found, exact=choice.exact))
    return VariantTable(rows=tuple(rows), entries=tuple(owners), tuned=tuple(tuned_rows), quarantined=withheld)


def _without_needed(entries: Sequence[KernelEntry]) -> dict[str, str]:
    """Variants that launch another family's, of which the build has none: why no call gets them, by name."""
    found = {}
    for entry in entries:
        needs = REGISTRY.choices[entry.family].needs(entry.config)
        if needs is not None and not any(needs.holds(other.family, other.config) for other in entries):
            found[entry.name] = f"the build has no variant of {needs.family} that it launches"
    return found
