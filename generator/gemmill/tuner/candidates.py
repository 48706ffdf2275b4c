"""The variants worth trying on a workload: those that the rules allow, that a table names, and that the model ranks
high.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmill.family import Row
from gemmill.manifest import KernelEntry, Manifest
from gemmill.registry import REGISTRY
from gemmill.runtime.choosing import model_ns, rejection
from gemmill.runtime.select import select
from gemmill.runtime.tuned import Machine, load_tuned
from gemmill.runtime.variant_table import VariantTable, make_variant_table
from gemmill.tuner.heuristics import Tile
from gemmill.tuner.orders import fastest_of_orders
from gemmill.tuner.peers import VLLM, peers_of, vllm_takes
from gemmill.tuner.protocol import PEER, Candidate
from gemmill.tuner.workloads import Workload

MOST = 60
PLAUSIBLE = 2.5
"""A sweep does not try variants that the analytic model puts beyond this many times its best. The model is wrong by
less.
"""
OF_AN_ORDER = 3
"""Variants of each order of K to try, on request."""


@dataclass(frozen=True, kw_only=True)
class BuildFacts:
    """A build with candidates, as far as planning needs it, without its extension."""

    folder: Path
    manifest: Manifest
    table: VariantTable
    """The build's rows, with the choices that tables give for the device."""


def build_facts(folder: Path, manifest: Manifest, here: Machine, names: frozenset[str] | None = None) -> BuildFacts:
    """The facts of a build that planning needs; only the variants in `names`, if given, are candidates."""
    entries = [e for e in manifest.entries if e.family in REGISTRY.tunings and (names is None or e.name in names)]
    symbols = sorted({entry.symbol for entry in entries})
    tuned = load_tuned(entries, here)
    table = make_variant_table(entries, symbols, tuned.choices, tuned.quarantined)
    return BuildFacts(folder=folder, manifest=manifest, table=table)


@dataclass(frozen=True, kw_only=True)
class Shortlist:
    """The candidates of one workload."""

    candidates: tuple[Candidate, ...]
    present: str | None
    """The first build's choice of today."""


def shortlist_of(
    workload: Workload,
    builds: Sequence[BuildFacts],
    sm_count: int,
    most: int = MOST,
    peers: bool = True,
    advised: Collection[Tile] = (),
    *,
    vllm: bool = False,
    orders: bool = False,
) -> Shortlist:
    """Up to `most` variants, the most promising first, those of the tiles that a second opinion advises among them.
    Then the peers that take the workload, torch's own and vLLM's library on request.

    With `orders` the model's best of each order of K are among them, however slow.
    """
    named: dict[str, Candidate] = {}
    guesses: dict[str, float] = {}
    advised_names: list[str] = []
    tile = REGISTRY.measured[workload.op][2].tile
    present = select(builds[0].table, workload.call, sm_count).entry if builds else None
    for build in builds:
        for entry, row, ns in fitting(build.table, workload, sm_count):
            if entry.name in named:
                continue
            named[entry.name] = Candidate(name=entry.name, build=str(build.folder))
            guesses[entry.name] = ns
            if tile is not None and tile(row.facts) in advised:
                advised_names.append(entry.name)
    limit = PLAUSIBLE * min(guesses.values(), default=0.0)
    ranked = sorted((name for name in named if guesses[name] <= limit), key=lambda name: (guesses[name], name))
    first = [name for name in _by_tables(workload, builds) if name in named]
    if present is not None and present.name in named:
        first.insert(0, present.name)
    of_orders = fastest_of_orders(guesses, OF_AN_ORDER) if orders else ()
    chosen = list(dict.fromkeys([*first, *of_orders, *advised_names, *ranked]))[:most]
    beside = [peer.name for peer in (peers_of(workload.family) if peers else ()) if peer.takes(workload)]
    if vllm and vllm_takes(workload):
        beside.append(VLLM)
    return Shortlist(
        candidates=(*(named[name] for name in chosen), *(Candidate(name=name, build=PEER) for name in beside)),
        present=present.name if present is not None else None,
    )


def fitting(table: VariantTable, workload: Workload, sm_count: int) -> Iterator[tuple[KernelEntry, Row, float]]:
    """The variants of a table that take a workload, each with its row and the nanoseconds that the model gives it."""
    for _, row, entry in table.of(workload.family):
        if rejection(row, workload.call) is None:
            yield entry, row, model_ns(row, workload.call, sm_count)


def _by_tables(workload: Workload, builds: Sequence[BuildFacts]) -> list[str]:
    """The variants that tables name for the same weights, the nearest step first."""
    tuning = REGISTRY.tunings[workload.family]
    near = []
    for build in builds:
        for tuned in build.table.tuned:
            entry = build.table.entries[tuned.row]
            if tuned.call_class != workload.call.call_class or entry.family != workload.family:
                continue
            sizes = tuning.named(tuned.sizes)
            if all(sizes[size] == n for size, n in workload.weights.items()):
                near.append((abs(sizes[tuning.bucketed] - workload.step), entry.name))
    return [name for _, name in sorted(near)[:4]]
