"""The choice of a variant for a call under pins and contracts, and why the others lost."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gemmill.family import ShapedCall
from gemmill.manifest import KernelEntry
from gemmill.registry import REGISTRY
from gemmill.runtime.choosing import Trust, choose, model_ns, rejection
from gemmill.runtime.invariance import Held, Invariance
from gemmill.runtime.table_file import Source, TableRow
from gemmill.runtime.tuned import Tuned, siblings
from gemmill.runtime.variant_table import VariantTable


@dataclass(frozen=True, kw_only=True)
class Noted:
    """A choice that the extension made, not one that it remembered."""

    call: ShapedCall
    variant: str
    """The variant's name."""
    trust: Trust


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A variant that lost, and the first reason."""

    name: str
    reason: str
    us: float | None = None
    """Microseconds that the model expects of a variant that fits."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The variant for a call, or None, and every other variant with the reason that ruled it out."""

    entry: KernelEntry | None
    trust: Trust
    trace: tuple[Rejected, ...]
    row: int = -1
    measured: Mapping[str, int] | None = None
    """The sizes, by name, of the row of a tuned table that the choice rests on."""
    held: Held | None = None
    """The order of K that batch invariance holds for such calls; None for a call without the request, or where no order
    serves.
    """
    cost: float | None = None
    """The expected ratio of the chosen variant's time to that of the free choice; None where the class has no order."""
    refused: str | None = None
    """Why batch invariance leaves the call without a variant."""

    def __str__(self) -> str:
        head = f"{self.entry.name} ({self.trust.name.lower()})" if self.entry else "no variant"
        return "\n".join([head, *(f"  not {r.name}: {r.reason}" for r in self.trace)])


def select(
    table: VariantTable,
    call: ShapedCall,
    sm_count: int,
    pinned: str | None = None,
    invariance: Invariance | None = None,
    *,
    traced: bool = True,
) -> Choice:
    """The choice for a call on a device of `sm_count` multiprocessors; `pinned` names a pinned variant.

    Without `traced`, the trace is empty: it needs the model's time of each variant that fits.

    With `invariance`, the choice follows the contract: it keeps the order of the class.

    The op launches nothing for an empty result, so there is no choice for one.
    """
    sizes = REGISTRY.choices[call.family].named(call.sizes)
    if any(sizes[name] == 0 for name in REGISTRY.choices[call.family].result):
        reason = "the result is empty: nothing is launched"
        return Choice(entry=None, trust=Trust.MODEL, trace=_same_for_all(table, call.family, reason))
    if pinned is not None and any(entry.name == pinned for _, _, entry in table.of(call.family)):
        return _select_pinned(table, call, pinned, invariance)
    index, trust, tuned = choose(table, call, sm_count) if invariance is None else invariance.choose(call, sm_count)
    chosen = table.entries[index] if index >= 0 else None
    measured = None if tuned is None else REGISTRY.choices[call.family].named(tuned.sizes)
    trace = _trace(table, call, sm_count, chosen, trust, invariance) if traced else ()
    choice = Choice(entry=chosen, trust=trust, trace=trace, row=index, measured=measured)
    if invariance is None:
        return choice
    # Where no variant takes the call at all, the family's own sentence says so.
    lacks = chosen is None and choose(table, call, sm_count)[0] >= 0
    refused = invariance.refusal(call) if lacks else None
    return replace(choice, held=invariance.held(call), cost=invariance.cost(call), refused=refused)


def _select_pinned(table: VariantTable, call: ShapedCall, pinned: str, invariance: Invariance | None = None) -> Choice:
    rows = table.rows_of(pinned)
    row = next((i for i in rows if table.rows[i].call_class == call.call_class), rows[0])
    others = tuple(
        rejected for rejected in _same_for_all(table, call.family, f"{pinned} is pinned") if rejected.name != pinned
    )
    reason = rejection(table.rows[row], call)
    if reason is None and invariance is not None and (differs := invariance.differs(call, row)) is not None:
        reason = f"{differs}: pin a variant of that order, or leave `gemmill.batch_invariant`"
    if reason is None:
        return Choice(entry=table.entries[row], trust=Trust.PINNED, trace=others, row=row)
    return Choice(entry=None, trust=Trust.PINNED, trace=(Rejected(name=pinned, reason=reason), *others))


def _same_for_all(table: VariantTable, family: str, reason: str) -> tuple[Rejected, ...]:
    names = dict.fromkeys(entry.name for _, _, entry in table.of(family))
    return tuple(Rejected(name=name, reason=reason) for name in names)


def _trace(
    table: VariantTable,
    call: ShapedCall,
    sm_count: int,
    chosen: KernelEntry | None,
    trust: Trust,
    invariance: Invariance | None = None,
) -> tuple[Rejected, ...]:
    reasons: dict[str, Rejected] = {}
    for i, row, entry in table.of(call.family):
        if entry is chosen:
            continue
        reason = rejection(row, call)
        if row.quarantined:
            reasons[entry.name] = Rejected(
                name=entry.name, reason=f"it is quarantined: {table.quarantined[entry.name]}"
            )
        elif reason is None:
            us = model_ns(row, call, sm_count) / 1000
            of_order = invariance.differs(call, i) if invariance is not None else None
            how = of_order or (
                "it is chosen under batch invariance alone"
                if invariance is None and row.held_only
                else "the model prefers another"
                if trust is Trust.MODEL
                else f"the table's {trust.name.lower()} row names another"
            )
            reasons[entry.name] = Rejected(name=entry.name, reason=f"it fits, {how} (model: {us:.1f} us)", us=us)
        elif entry.name not in reasons or row.call_class == call.call_class:
            reasons[entry.name] = Rejected(
                name=entry.name, reason=reason
            )  # of the row for this class of calls, where there is one
    return tuple(reasons.values())


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The measurement behind a choice: its workload, device and date."""

    table: Path
    row: TableRow
    source: Source


def evidence_of(choice: Choice, tuned: Tuned) -> Evidence | None:
    """The row behind a choice, in the most preferred of the build's tables that has it; None for a choice of the
    model."""
    if choice.measured is None or choice.entry is None:
        return None
    for loaded in tuned.tables:
        for row in loaded.table.rows:
            offered = siblings(row, exact=True) if row.sizes == choice.measured else []
            if any(choice.entry.name in choices.names for choices in offered):
                return Evidence(table=loaded.path, row=row, source=loaded.table.sources[row.source])
    return None


def passed_over(call: ShapedCall, tuned: Tuned) -> Evidence | None:
    """The nearest measured row for a call for which the model chose: the build lacks its variants, or the model expects another
    to be faster at the call's sizes. None where there is none.

    Of calls with the row's exact sizes but the bucketed one, which the row's has to cover. Some families are never measured.
    """
    tuning = REGISTRY.tunings.get(call.family)
    if tuning is None:
        return None
    asked = tuning.named(call.sizes)
    found: Evidence | None = None
    for loaded in tuned.tables:
        for row in loaded.table.rows:
            if row.sizes.keys() != asked.keys() or any(row.sizes[name] != asked[name] for name in tuning.near):
                continue
            measured = row.sizes[tuning.bucketed]
            offered = [one for one in siblings(row, exact=True) if one.call_class == call.call_class]
            if not offered or not tuning.reach.covers(measured, asked[tuning.bucketed]):
                continue
            if found is None or measured < found.row.sizes[tuning.bucketed]:
                found = Evidence(table=loaded.path, row=row, source=loaded.table.sources[row.source])
    return found
