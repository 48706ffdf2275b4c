"""`gemmill tune --batch-invariant`: the fastest of each order of K is tried, timed to the end, and kept in the row."""

from collections import Counter
from pathlib import Path

import pytest

from gemmill.registry import REGISTRY
from gemmill.runtime.table_file import read_table
from gemmill.runtime.tuned import Machine
from gemmill.space.names import to_name
from gemmill.space.selections import select
from gemmill.tuner.candidates import OF_AN_ORDER, build_facts, fitting, shortlist_of
from gemmill.tuner.measure import Task, halving, measure
from gemmill.tuner.orders import fastest_of_orders, order_of
from gemmill.tuner.program import TuneRequest, stand_in_build, tune
from gemmill.tuner.protocol import Candidate
from gemmill.tuner.record import Record
from gemmill.tuner.sweep import SweepOptions
from gemmill.vocab import DType
from gemms import MeasuredOp, gemm
from unit.tune.test_measure import Scripted
from unit.tune.test_sweep import Direct

FP8 = [
    to_name(config)
    for config in REGISTRY.configs_of("scaled_mm", select("default").configs)
    if config.operands.a_dtype is DType.E4M3
    and not config.operands.group_size
    and "_bf16_scaledbias_channel" in to_name(config)
]
WORKLOAD = gemm(op=MeasuredOp.FP8, m=16, n=2048, k=16384)


def test_each_order_has_its_fastest() -> None:
    us = {name: float(place) for place, name in enumerate(FP8)}
    first, twice = fastest_of_orders(us), fastest_of_orders(us, 2)
    orders = {order_of(name) for name in FP8} - {None}
    assert len(first) == len(orders) > 3 and set(first) < set(twice)
    assert {order_of(name) for name in first} == orders and list(first) == sorted(first, key=us.__getitem__)
    for name in first:
        assert not [faster for faster in FP8[: FP8.index(name)] if order_of(faster) == order_of(name)]


def test_the_models_best_of_each_order_is_tried_however_slow() -> None:
    folder, manifest = stand_in_build(select("default"))
    facts = [build_facts(folder, manifest, Machine(arch="sm90a", device=None, driver=None))]
    workload = gemm(op=MeasuredOp.FP8, m=8192, n=8192, k=512)

    def tried(orders: bool) -> dict[object, int]:
        found = shortlist_of(workload, facts, 132, 200, False, orders=orders).candidates
        return Counter(order for candidate in found if (order := order_of(candidate.name)) is not None)

    told = {order_of(entry.name) for entry, *_ in fitting(facts[0].table, workload, 132)} - {None}
    assert set(tried(True)) == told and min(tried(True).values()) <= OF_AN_ORDER
    assert set(tried(False)) < told


@pytest.mark.parametrize("orders", [False, True])
def test_no_stage_drops_the_fastest_of_an_order(orders: bool) -> None:
    kinds = fastest_of_orders(dict.fromkeys(FP8, 1.0))[:2]
    others = [name for name in FP8 if order_of(name) == order_of(kinds[1]) and name != kinds[1]][:1]
    names = [*kinds, *others]
    worker = Scripted({names[0]: [1.0] * 4, names[1]: [5.0] * 4, names[2]: [6.0] * 4})
    candidates = tuple(Candidate(name=name, build="b") for name in names)
    found = measure(worker, Task(workload=WORKLOAD, candidates=candidates, kept=None, stages=halving(4), orders=orders))
    assert [len(found.rounds_us[name]) for name in names] == [4, 4 if orders else 1, 1]


@pytest.mark.parametrize("orders", [False, True])
def test_a_row_has_the_fastest_of_each_order_that_was_timed(tmp_path: Path, home: Path, orders: bool) -> None:
    table = tmp_path / "table.json"
    request = TuneRequest(
        workloads=[gemm(op=MeasuredOp.FP8, m=16, n=64, k=2048)],
        builds=[stand_in_build(select("default"))],
        options=SweepOptions(rounds=3, most=40, peers=False, orders=orders),
        journal=tmp_path / "j.jsonl",
        table=table,
        dry_run=True,
    )
    record: Record = tune(request, executor_of=Direct).record
    (entry,) = record.entries.values()
    timed = {order_of(name) for name in entry.outcome.rounds_us} - {None}
    (row,) = read_table(table).rows
    kept = {order_of(name) for name in row.variants} - {None}
    assert kept <= timed and len(row.variants) >= 4
    if orders:
        assert len(timed) > 3 and kept == timed
