"""A family whose sizes are not m, n and k: variants that take so many rows of a cache at a time. Mirrored in binding/probe.cpp."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from gemmill.family import Reach, Row, ShapedCall, Tuning
from gemmill.runtime.tuned import TunedChoice

TOY = "toy"


class Facts(NamedTuple):
    rows_at_a_time: int


def toy_rows(config: int, kernel: int) -> list[Row]:
    least, facts = (1, 1, config), Facts(config)
    return [Row(kernel=kernel, call_class=5, most=1000, alignments=(4,), least=least, facts=facts)]


def toy_ns(row: Row, call: ShapedCall, sm_count: int) -> float:
    length, heads, page = call.sizes
    return float(-(-length // row.facts.rows_at_a_time) * heads * page)


def toy_wastes(row: Row, measured: Sequence[int], sizes: Sequence[int]) -> bool:
    return sizes[0] % row.facts.rows_at_a_time > 0


TOY_TUNING = Tuning(
    sizes=("length", "heads", "page"),
    result=("length",),
    aligned=("cache",),
    near=("page", "heads"),
    bucketed="length",
    reach=Reach(few=2, many=100, endless=400, ratio=3, distance=0.5),
    rows=toy_rows,
    describe=lambda number: f"class {number}",
    differs=lambda has, needs: f"it computes class {has}, the call needs class {needs}",
    refuses=lambda row, call: None if call.sizes[1] % 2 else "it takes odd heads",
    model_ns=toy_ns,
    wastes=toy_wastes,
    offers=lambda config: {5: (config,)},
    measured_as=lambda call: TOY,
)


def toy_entry(config: int, symbol: str) -> Any:
    """As much of a manifest's entry as a table reads."""
    return SimpleNamespace(name=f"sm90a_toy_{config}", family=TOY, symbol=symbol, config=config)


def measured(name: str, length: int, heads: int = 7, page: int = 16) -> TunedChoice:
    sizes = {"page": page, "length": length, "heads": heads}
    return TunedChoice(family=TOY, call_class=5, sizes=sizes, names=(f"sm90a_toy_{name}",))


def call(length: int, heads: int = 7, page: int = 16, call_class: int = 5, alignment: int = 16) -> ShapedCall:
    return ShapedCall(family=TOY, call_class=call_class, sizes=(length, heads, page), alignments=(alignment,))
