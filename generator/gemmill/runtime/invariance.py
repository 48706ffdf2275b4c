"""Batch invariance: a row's result has the same bits whatever the batch, its place there, and its neighbours.

An element's bits depend on the order of its sum along K (`Tuning.order`), and on no other difference between variants.
Under the contract a choice holds one order for each class of calls, its sizes but those that the batch decides, and the
alignment of its operands. The order is that of the least expected loss over a fixed set of batches, by the shipped
tables and the model, on a device with the architecture's usual number of multiprocessors. So it is the same on every
device of the architecture, and whichever batch comes first. Within the order a call gets the fastest variant, by all
tables.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from gemmill.family import Order, ShapedCall, Tuning
from gemmill.manifest import KernelEntry
from gemmill.registry import REGISTRY
from gemmill.runtime.choosing import Trust, choose, model_ns, rejection
from gemmill.runtime.table_file import TableRow
from gemmill.runtime.tuned import TunedChoice, times_of
from gemmill.runtime.variant_table import TunedRow, VariantTable

ROWS = tuple(1 << i for i in range(13))
"""The bucketed sizes, 1 to 4096, over which an order's expected loss is the geometric mean."""
FEW_ROWS, MANY_WEIGHT = 128, 0.6
"""Sizes above FEW_ROWS have this part of the mean's weight between them: there the loss that is allowed is half as large
(docs/notes/tables.md)."""

ASKED = "batch invariance is asked for"
"""Words in every refusal under the contract."""

_Key = tuple[str, int, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Held:
    """The order that calls of a class hold at given sizes but those that the batch decides."""

    order: Order
    loss: float
    """The expected loss against the free choice, from the geometric mean over a set of batches: 0.02 takes 2 % longer."""
    worst: float
    """The same at the batch where it is the largest."""
    worst_at: tuple[int, ...]
    """The sizes of that batch; none for a family that does not choose by sizes."""
    over: str = ""
    """Those batches, in words."""
    length: int = 0
    """Elements that such calls sum, where slices follow from them; else 0."""

    def is_kept_by(self, order: Order | None) -> bool:
        """Whether a variant of an order gives these bits."""
        return order is not None and (order.over(self.length) if self.length else order) == self.order


def order_of(entry: KernelEntry) -> Order | None:
    """The order in which a variant sums; None where it promises nothing across batches."""
    return REGISTRY.choices[entry.family].order(entry.config)


class Invariance:
    """The choice of one build under the contract."""

    def __init__(
        self, table: VariantTable, choices: Sequence[TunedChoice], shipped: Iterable[TableRow], usual_sm_count: int
    ) -> None:
        """`choices`: measured choices that this device uses, for the choice within an order. `shipped`: rows of shipped tables
        of the architecture, whatever device they were measured on, for the choice of an order."""
        self._table, self._choices, self._sm_count = table, choices, usual_sm_count
        self._orders = tuple(map(order_of, table.entries))
        self._shipped: dict[tuple[int, ...], list[TableRow]] = {}
        for row in shipped:
            self._shipped.setdefault(tuple(row.sizes.values()), []).append(row)
        self._held: dict[_Key, Held | None] = {}
        self._views: dict[tuple[str, int, Order, int], tuple[VariantTable, tuple[int, ...]]] = {}

    def order(self, row: int, call: ShapedCall) -> Order | None:
        """The order in which a row of the table sums a call; None where it promises nothing across batches."""
        order, length = self._orders[row], _summed(call)
        return order.over(length) if order is not None and length else order

    def choose(self, call: ShapedCall, sm_count: int) -> tuple[int, Trust, TunedRow | None]:
        """As `choosing.choose`, within the order that the class keeps; the row is -1 where it has none, or no variant of
        that order takes the call.
        """
        held = self.held(call)
        if held is None:
            return -1, Trust.MODEL, None
        view, places = self._view(call, held.order)
        index, trust, tuned = choose(view, call, sm_count)
        return places[index] if index >= 0 else -1, trust, tuned

    def held(self, call: ShapedCall) -> Held | None:
        """The order for calls of such a class, sizes but those that the batch decides, and alignments; None where none can be
        held."""
        tuning, call = REGISTRY.choices[call.family], _whole(call)
        across = _across(tuning)
        fixed = tuple(size for name, size in tuning.named(call.sizes).items() if name not in across)
        key = (call.family, call.call_class, fixed, call.alignments)
        if key not in self._held:
            self._held[key] = self._best(call)
        return self._held[key]

    def refusal(self, call: ShapedCall) -> str:
        """Why a call has no variant under the contract: a sentence that names the request and the remedy."""
        tuning = REGISTRY.choices[call.family]
        asked = f"{ASKED}, and of {tuning.describe(call.call_class)}"
        held = self.held(call)
        if held is not None:
            return (
                f"{asked} the order {held.order} is held, of which the build has no variant that takes {_told(call)}: leave "
                "`gemmill.batch_invariant`, or build more variants of that order"
            )
        orders = {str(order) for i in self._of_class(call) if (order := self.order(i, call)) is not None}
        if not orders:
            return (
                f"{asked} no variant of the build sums in an order that is independent of the batch: leave "
                "`gemmill.batch_invariant` for this op"
            )
        return (
            f"{asked} no order of the build ({'; '.join(sorted(orders))}) takes {_told(call)} at each of {_over(tuning)}: "
            "leave `gemmill.batch_invariant`, or build variants of one order for few and many rows"
        )

    def differs(self, call: ShapedCall, row: int) -> str | None:
        """Why a row of the table may not answer a call: its order is not the one that is held; None where it is."""
        held, order = self.held(call), self.order(row, call)
        if held is None:
            return f"{ASKED}, and no order can be held for such calls"
        if order == held.order:
            return None
        found = f"its order is {order}" if order is not None else "its bits may depend on the batch"
        return f"{found}, batch invariance holds {held.order}"

    def cost(self, call: ShapedCall) -> float | None:
        """The expected ratio of the held choice's time to the free choice's for this call; None where the class has no
        order.
        """
        held = self.held(call)
        if held is None or not REGISTRY.choices[call.family].is_measured:
            return None if held is None else 1.0
        return self._times(call)[held.order]

    def _best(self, call: ShapedCall) -> Held | None:
        tuning = REGISTRY.choices[call.family]
        found = {order for i in self._of_class(call) if (order := self.order(i, call)) is not None}
        if _is_chunk(call):
            found = {order for order in found if order.slices == 1}
        if not tuning.is_measured:
            # One variant serves each class, unless classes of different variants share a number.
            order = min(found, key=str, default=None) if len(found) == 1 else None
            return None if order is None else Held(order=order, loss=0.0, worst=0.0, worst_at=())
        across, sizes = _across(tuning), tuning.named(call.sizes)
        times = {
            batch: self._times(replace(call, sizes=tuning.ordered(sizes | dict(zip(across, batch, strict=True)))))
            for batch in product(*across.values())
        }
        able = [order for order in found if all(order in ratios for ratios in times.values())]
        if not able:
            return None
        mean = statistics.geometric_mean if tuning.across else _mean_over_rows
        losses = {order: mean([ratios[order] for ratios in times.values()]) for order in able}
        best = min(able, key=lambda order: (losses[order], str(order)))
        worst = max(times, key=lambda batch: times[batch][best])
        return Held(
            order=best,
            loss=losses[best] - 1,
            worst=times[worst][best] - 1,
            worst_at=worst,
            over=_over(tuning),
            length=_summed(call),
        )

    def _of_class(self, call: ShapedCall) -> list[int]:
        return [
            i for i, row, _ in self._table.of(call.family) if row.call_class == call.call_class and not row.quarantined
        ]

    def _times(self, call: ShapedCall) -> dict[Order | None, float]:
        """How many times as long as the fastest variant of all the fastest of each order takes, as measured, else by the
        model."""
        tuning = REGISTRY.choices[call.family]
        fastest: dict[Order | None, float] = {}
        of_order: dict[str, Order | None] = {}
        for i in self._of_class(call):
            row, order = self._table.rows[i], self.order(i, call)
            of_order[self._table.entries[i].name] = order
            known = fastest.get(order, math.inf)
            if rejection(row, call) is None and tuning.least_ns(row, call, self._sm_count) < known:
                fastest[order] = min(known, model_ns(row, call, self._sm_count))
        least, one_slice = min(fastest.values(), default=1.0), tuning.one_slice
        ratios = {
            # Models that know nothing of a class say 0 of all its variants.
            order: (ns / least) ** (one_slice if order is not None and order.slices == 1 else 1.0) if least else 1.0
            for order, ns in fastest.items()
        }
        if (measured := self._measured(call, of_order)) is not None:
            ratios = {order: measured.get(order, max(ratio, max(measured.values()))) for order, ratio in ratios.items()}
            least = min(ratios.values())
            ratios = {order: ratio / least for order, ratio in ratios.items()}
        return ratios

    def _measured(self, call: ShapedCall, of_order: Mapping[str, Order | None]) -> dict[Order | None, float] | None:
        """The same of orders of which a variant was timed at exactly these sizes, the bucketed one a step above at most."""
        tuning = REGISTRY.tunings[call.family]
        sizes = tuning.named(call.sizes)
        sizes[tuning.bucketed] = tuning.reach.bucket(sizes[tuning.bucketed])
        found: dict[Order | None, float] = {}
        for row in self._shipped.get(tuple(sizes[name] for name in tuning.key), ()):
            if row.sizes.keys() != sizes.keys():
                continue
            for name, us in times_of(row, call.family, call.call_class).items():
                if name in of_order:
                    order = of_order[name]
                    found[order] = min(found.get(order, math.inf), us)
            if found:
                least = min(found.values())
                return {order: us / least for order, us in found.items()}
        return None

    def _view(self, call: ShapedCall, order: Order) -> tuple[VariantTable, tuple[int, ...]]:
        """The table of one class and order, and the place in the whole table of each of its rows."""
        key = (call.family, call.call_class, order, _summed(call))
        if key not in self._views:
            places = tuple(i for i in self._of_class(call) if self.order(i, call) == order)
            entries: tuple[KernelEntry, ...] = tuple(self._table.entries[i] for i in places)
            rows = {entry.name: at for at, entry in enumerate(entries)}
            tuning = REGISTRY.choices[call.family]
            tuned = [
                TunedRow(
                    call_class=call.call_class,
                    sizes=tuning.ordered(choice.sizes),
                    row=next(rows[name] for name in choice.names if name in rows),
                    exact=choice.exact,
                )
                for choice in sorted(self._choices_of(call), key=lambda choice: choice.key)
                if any(name in rows for name in choice.names)
            ]
            of_order = tuple(replace(self._table.rows[i], held_only=False) for i in places)
            view = VariantTable(rows=of_order, entries=entries, tuned=tuple(tuned))
            self._views[key] = view, places
        return self._views[key]

    def _choices_of(self, call: ShapedCall) -> list[TunedChoice]:
        return [
            choice for choice in self._choices if (choice.family, choice.call_class) == (call.family, call.call_class)
        ]


def _across(tuning: Tuning) -> Mapping[str, tuple[int, ...]]:
    """The sizes that the batch decides, and the values at which the choice of an order compares."""
    return tuning.across or {tuning.bucketed: ROWS}


def _is_chunk(call: ShapedCall) -> bool:
    tuning = REGISTRY.choices[call.family]
    return tuning.chunks is not None and tuning.named(call.sizes)[tuning.chunks.size] > tuning.chunks.most


def _whole(call: ShapedCall) -> ShapedCall:
    """The call by which the order of a chunk is chosen; a call that is none as it is."""
    tuning = REGISTRY.choices[call.family]
    if tuning.chunks is None or not _is_chunk(call):
        return call
    sizes = tuning.named(call.sizes) | {tuning.chunks.size: tuning.chunks.whole}
    return replace(call, sizes=tuning.ordered(sizes))


def _mean_over_rows(ratios: Sequence[float]) -> float:
    """The geometric mean of ratios at ROWS, of which those above FEW_ROWS have MANY_WEIGHT."""
    few = sum(rows <= FEW_ROWS for rows in ROWS)
    parts = statistics.geometric_mean(ratios[:few]), statistics.geometric_mean(ratios[few:])
    return float(parts[0] ** (1 - MANY_WEIGHT) * parts[1] ** MANY_WEIGHT)


def _summed(call: ShapedCall) -> int:
    """Elements that a call sums, where its family's slices follow from them; else 0."""
    tuning = REGISTRY.choices[call.family]
    return tuning.named(call.sizes)[tuning.summed] if tuning.summed else 0


def _over(tuning: Tuning) -> str:
    """The batches at which the choice of an order compares, in words."""
    return " and ".join(f"{name} of {v[0]} to {v[-1]}" for name, v in tuning.across.items()) or f"1 to {ROWS[-1]} rows"


def _told(call: ShapedCall) -> str:
    names = " x ".join(name.upper() for name in REGISTRY.choices[call.family].sizes)
    sizes = " x ".join(map(str, call.sizes))
    aligned = f" aligned to {', '.join(map(str, call.alignments))} bytes" if call.alignments else ""
    return f"{names} of {sizes}{aligned}" if call.sizes else "it"
