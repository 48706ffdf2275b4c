"""The extension's choices against Python's."""

import json
import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product

import pytest

import gemmill
import toy_tuning
from gemmill.families import scaled_mm
from gemmill.families.scaled_mm.classes import Need, class_code
from gemmill.family import Row, ShapedCall
from gemmill.registry import REGISTRY
from gemmill.runtime.choosing import Trust, model_ns
from gemmill.runtime.chosen import chosen_in
from gemmill.runtime.select import Noted, select
from gemmill.runtime.variant_table import TunedRow, make_variant_table

SMS = 132
ROUNDS = 4000
ALIGNED = (16, 16, 16)


def call_of_sizes(call_class: int, m: int, n: int, k: int, alignments: tuple[int, int, int] = ALIGNED) -> ShapedCall:
    return ShapedCall(family=scaled_mm.NAME, call_class=call_class, sizes=(m, n, k), alignments=alignments)


def some_calls(seed: int, count: int) -> list[ShapedCall]:
    """Classes, shapes and alignments of all kinds, each of them often enough."""
    rng = random.Random(seed)

    def size() -> int:
        return rng.choice((1, 16, 17, rng.randrange(1, 300), rng.choice((1024, 4096, 8192)), rng.randrange(1, 30_000)))

    def bytes_() -> int:
        return rng.choice((16, 16, 16, 8, 4, 2, 1))

    return [
        call_of_sizes(
            rng.choice((rng.randrange(32), 32 + rng.randrange(256))),
            size(),
            size(),
            rng.choice((size(), size(), 0)),
            (bytes_(), bytes_(), bytes_()),
        )
        for _ in range(count)
    ]


def gemm_rows(probe) -> tuple[Row, ...]:
    """The table's rows of GEMMs, which come first."""
    return probe.build.table.rows[: probe.build.table.families[scaled_mm.NAME].stop]


def some_tuned(probe, seed: int) -> tuple[TunedRow, ...]:
    rng = random.Random(seed)
    rows = gemm_rows(probe)
    sizes = (1024, 4096, 8192)
    found = [
        TunedRow(
            call_class=rows[i].call_class,
            sizes=(rng.choice((1, 16, 64, 4096)), rng.choice(sizes), rng.choice(sizes)),
            row=i,
            exact=rng.choice((False, True, True)),
        )
        for i in rng.choices(range(len(rows)), k=600)
    ]
    return tuple(sorted(found, key=lambda t: (t.call_class, *t.sizes[1:], t.sizes[0])))


@pytest.mark.parametrize("tuned", [False, True], ids=["by the model", "by a table"])
def test_choices_agree(tuned: bool, probe, with_table: Callable) -> None:
    rows = some_tuned(probe, 1) if tuned else ()
    with_table(tuned=rows)
    calls = some_calls(2, ROUNDS)
    for i, row in enumerate(rows):  # at a measured place, with operands that suit every variant
        sizes = (calls[i].sizes[0], *row.sizes[1:])
        calls[i] = replace(calls[i], call_class=row.call_class, sizes=sizes, alignments=ALIGNED)
    seen = set()
    for call in calls:
        here = select(probe.build.table, call, SMS)
        row, trust = probe.build.choose(call, SMS)
        assert row == here.row, (call, here)
        if row >= 0:
            assert trust is here.trust, call
        seen.add((row >= 0, here.trust))
    assert seen >= (
        {(True, Trust.EXACT), (True, Trust.NEAREST)} if tuned else {(True, Trust.MODEL), (False, Trust.MODEL)}
    )


def test_choices_agree_among_families_of_other_sizes(probe, with_table: Callable, monkeypatch) -> None:
    """Two families in one table, whose classes have the same numbers: neither gets a row of the other, nor its pin."""
    for known in (REGISTRY.choices, REGISTRY.tunings):
        monkeypatch.setitem(known, toy_tuning.TOY, toy_tuning.TOY_TUNING)
    rng = random.Random(9)
    known = probe.variants_of(scaled_mm.NAME)
    toys = [toy_tuning.toy_entry(n, entry.symbol) for n, entry in zip((1, 3, 4, 8), known, strict=False)]
    of_toys = [
        toy_tuning.measured(str(rng.choice((1, 3, 4, 8))), length, heads, page)
        for length in (1, 2, 60, 100, 400)
        for heads in (7, 9)
        for page in (16, 20)
    ]
    table = make_variant_table([*known, *toys], [entry.symbol for entry in known], of_toys)
    with_table(rows=table.rows, entries=table.entries, tuned=table.tuned)
    seen = set()
    for other in some_calls(10, ROUNDS // 4):
        asked = toy_tuning.call(rng.randrange(1, 1100), rng.randrange(1, 10), rng.randrange(1, 22))
        for call in (replace(asked, call_class=rng.choice((5, 5, 5, 6))), replace(other, call_class=5)):
            here = select(table, call, SMS)
            row, trust = probe.build.choose(call, SMS)
            assert row == here.row and (row < 0 or trust is here.trust), (call, here)
            seen.add((call.family, row >= 0 and trust))
    assert seen >= {(toy_tuning.TOY, trust) for trust in (False, Trust.EXACT, Trust.NEAREST, Trust.MODEL)}
    asked = toy_tuning.call(8, page=20)
    assert probe.build.choose(asked, SMS)[0] >= 0
    assert probe.build.choose(replace(asked, family=scaled_mm.NAME), SMS)[0] == -1, "the same numbers mean another call"
    assert table.rows_of("sm90a_toy_1")[0] == table.families[scaled_mm.NAME].stop, (
        "its rows begin where those of GEMMs end"
    )
    for name in ("sm90a_toy_1", "sm90a_toy_3"):
        pinned = table.rows_of(name)[0]
        before = probe.build.pin(pinned)
        try:
            assert probe.build.choose(toy_tuning.call(8, page=20), SMS) == (pinned, Trust.PINNED)
            gemm = call_of_sizes(table.rows[0].call_class, 64, 4096, 4096)
            assert probe.build.choose(gemm, SMS)[1] is Trust.MODEL
        finally:
            probe.build.pin(before)


def test_a_table_that_came_since_is_chosen_by_once_tables_are_read(
    probe, tmp_path, monkeypatch, with_table: Callable
) -> None:
    monkeypatch.setenv("GEMMILL_HOME", str(tmp_path))
    monkeypatch.setattr(probe.build, "tuned", probe.build.tuned)
    with_table()  # and the first one comes back
    call = call_of_sizes(probe.build.table.rows[0].call_class, 64, 4096, 4112)
    before, trust = probe.build.choose(call, SMS)
    assert trust is Trust.MODEL
    other = next(rejected.name for rejected in select(probe.build.table, call, SMS).trace if rejected.us is not None)
    row = {"op": "fp8", "sizes": {"n": 4096, "k": 4112, "m": 64}, "variants": [other], "us": [1.0], "source": "here"}
    source = {"gpu": "NVIDIA H200", "date": "2026-11-22", "program": "test"}
    table = {"schema_version": 2, "device": "NVIDIA H200", "arch": "sm90a", "sources": {"here": source}, "rows": [row]}
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "nvidia-h200.json").write_text(json.dumps(table))
    probe.build.read_tables()
    after, trust = probe.build.choose(call, SMS)
    assert probe.build.table.entries[after].name == other and after != before and trust is Trust.EXACT


def test_a_quarantined_variant_is_never_chosen_but_pinned(probe, with_table: Callable) -> None:
    table = probe.build.table
    call = call_of_sizes(table.rows[0].call_class, 64, 4096, 4096)
    row, _ = probe.build.choose(call, SMS)
    name = table.entries[row].name
    rows = tuple(replace(r, quarantined=e.name == name) for r, e in zip(table.rows, table.entries, strict=True))
    with_table(rows=rows, quarantined={name: "it was wrong"})
    now = probe.build.choose(call, SMS)[0]
    assert now == select(probe.build.table, call, SMS).row and table.entries[now].name != name
    before = probe.build.pin(row)
    try:
        assert probe.build.choose(call, SMS) == (row, Trust.PINNED)
    finally:
        probe.build.pin(before)


def test_choices_agree_where_a_variant_is_pinned(probe) -> None:
    names = [entry.name for entry in probe.variants_of(scaled_mm.NAME)]
    taken = 0
    for i, call in enumerate(some_calls(3, ROUNDS)):
        name = names[i % len(names)]
        row_of_name = probe.build.table.rows_of(name)[0]
        if i % 2:  # of a class that the variant computes
            call = replace(call, call_class=probe.build.table.rows[row_of_name].call_class)
        before = probe.build.pin(row_of_name)
        try:
            row, trust = probe.build.choose(call, SMS)
        finally:
            assert probe.build.pin(before) == row_of_name
        here = select(probe.build.table, call, SMS, pinned=name)
        assert (row, trust) == (here.row, Trust.PINNED), (call, name)
        taken += row >= 0
    assert taken > 50


def test_estimates_agree(probe) -> None:
    """Of every row, whichever would be chosen: a choice shows little of its estimates."""
    rng = random.Random(12)
    calls = [replace(call, sizes=(*call.sizes[:2], max(call.sizes[2], 1))) for call in some_calls(12, ROUNDS)]
    wasteful = 0
    for index, row in enumerate(gemm_rows(probe)):
        of_class = [replace(call, call_class=row.call_class) for call in rng.sample(calls, 30)]
        for measured, call in pairwise(of_class):
            for sms in (SMS, 16):
                assert probe.nanoseconds(index, call, sms) == model_ns(row, call, sms), call  # to the last bit
            found = probe.wastes(index, measured, call)
            assert found == REGISTRY.choices[scaled_mm.NAME].wastes(row, measured.sizes, call.sizes), (measured, call)
            wasteful += found
    assert wasteful > 500


def test_no_variant_takes_more_ctas_than_kernels_count(probe) -> None:
    taken = set()
    for entry in probe.variants_of(scaled_mm.NAME)[::4]:
        first = probe.build.table.rows_of(entry.name)[0]
        before = probe.build.pin(first)
        try:
            for m, n in product((2**22, 2**23), repeat=2):
                call = call_of_sizes(probe.build.table.rows[first].call_class, m, n, 256)
                row, _ = probe.build.choose(call, SMS)
                assert row == select(probe.build.table, call, SMS, pinned=entry.name).row, call
                taken.add(row >= 0)
        finally:
            probe.build.pin(before)
    assert taken == {True, False}


def test_remembered_choice_is_that_of_the_very_call(probe) -> None:
    """A choice is remembered by all that it depends on: one number changed, it is Python's choice again."""
    table, changed = probe.build.table, set()
    rng = random.Random(7)
    for row in rng.choices(gemm_rows(probe), k=100):
        call = call_of_sizes(row.call_class, 64, 4096, 4096)
        here = select(table, call, SMS).row
        others = [replace(call, alignments=tuple(1 if i == j else 16 for j in range(3))) for i in range(3)]
        others += [replace(call, sizes=sizes) for sizes in ((5, 4096, 4096), (64, 65_536, 4096), (64, 4096, 0))]
        others.append(replace(call, call_class=rng.choice(gemm_rows(probe)).call_class))
        for other in others:
            assert probe.build.choose(call, SMS)[0] == here
            there = select(table, other, SMS).row
            assert probe.build.choose(other, SMS)[0] == there, (call, other)
            if there != here:
                changed |= {i for i, (x, y) in enumerate(zip(numbers(call), numbers(other), strict=True)) if x != y}
        for sms in (1, SMS, 16):
            there = select(table, call, sms).row
            assert probe.build.choose(call, sms)[0] == there, sms
            changed |= {"sms"} if there != here else set()
    assert changed == {*range(7), "sms"}, "a number on which no choice depended was not tried"


def numbers(call: ShapedCall) -> tuple[int, ...]:
    return (call.call_class, *call.sizes, *call.alignments)


def test_a_new_table_takes_effect(probe, with_table: Callable) -> None:
    """Choices are remembered in C++: not beyond the table that they came from."""
    call = next(c for c in some_calls(4, ROUNDS) if probe.build.choose(c, SMS)[0] >= 0)
    first, _ = probe.build.choose(call, SMS)
    rows = list(probe.build.table.rows)
    rows[first] = replace(rows[first], least=(0, 0, call.sizes[2] + 1))
    with_table(rows=tuple(rows))
    assert probe.build.choose(call, SMS)[0] != first


def test_choices_are_noted_once_and_counted(probe, with_table: Callable) -> None:
    table = probe.build.table
    row = next(i for i, entry in enumerate(table.entries) if entry.config.design.alignment_a > 1)
    with_table(tuned=(TunedRow(call_class=table.rows[row].call_class, sizes=(16, 4096, 4096), row=row, exact=True),))
    here = call_of_sizes(table.rows[row].call_class, 16, 4096, 4096)
    calls = [here, replace(here, sizes=(16, 4000, 4096)), replace(here, sizes=(17, 4096, 4096))]
    trusts, measured = [Trust.EXACT, Trust.NEAREST, Trust.MODEL], table.entries[row].name
    probe.build.note_choices(64)
    try:
        names = [table.entries[probe.build.choose(call, SMS)[0]].name for call in calls * 2]
        assert names[:2] == [measured] * 2
        noted = [
            Noted(call=call, variant=name, trust=trust) for call, name, trust in zip(calls, names, trusts, strict=False)
        ]
        assert probe.build.take_noted(64) == noted[1:]
        assert probe.build.take_noted(64) == []
        probe.build.note_choices(1)
        for n in (16, 32, 64):
            probe.build.choose(replace(here, sizes=(16, n, 4096)), SMS)
        assert len(probe.build.take_noted(64)) == 1, "no more than were asked for"
        probe.build.note_choices(64, Trust.EXACT)
        probe.build.choose(replace(here, sizes=(15, 4096, 4096)), SMS)
        assert [choice.trust for choice in probe.build.take_noted(64)] == [Trust.EXACT]
    finally:
        probe.build.note_choices(0)
    probe.build.choose(replace(here, sizes=(16, 48, 4096)), SMS)
    assert probe.build.take_noted(64) == []
    counted = [
        chosen for chosen in chosen_in([probe.build]) if chosen.variant == measured and chosen.trust is not Trust.MODEL
    ]
    assert [(chosen.trust, chosen.times) for chosen in counted] == [(Trust.EXACT, 2), (Trust.NEAREST, 1)]
    assert sum(chosen.times for chosen in chosen_in([probe.build])) == 8, "remembered choices are not counted"


def test_noted_choices_are_taken_each_once(probe, with_table: Callable) -> None:
    with_table(tuned=())
    calls = [call_of_sizes(probe.build.table.rows[0].call_class, 16, n, 4096) for n in (1024, 2048, 4096)]
    probe.build.note_choices(64)
    try:
        for call in calls:
            probe.build.choose(call, SMS)
        taken = [probe.build.take_noted(1)[0].call for _ in calls]
    finally:
        probe.build.note_choices(0)
    assert sorted(call.sizes for call in taken) == [call.sizes for call in calls]


def test_a_fork_while_choices_are_taken_does_not_hang_the_child(probe, with_table: Callable) -> None:
    """The child notes and takes its own: whoever held the lock when it was forked is not in it."""
    with_table(tuned=())
    here = call_of_sizes(probe.build.table.rows[0].call_class, 16, 4096, 4096)
    probe.build.note_choices(64)
    try:
        with probe.taking_noted():
            for i in range(30):
                assert _code_of_child(probe, replace(here, sizes=(17 + i, 4096, 4096))) == 0, (
                    "one that hangs is killed by its alarm"
                )
    finally:
        probe.build.note_choices(0)


def _code_of_child(probe, call: ShapedCall) -> int:
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        probe.build.choose(call, SMS)
        os._exit(len(probe.build.take_noted(64)) != 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_choice_under_batch_invariance_is_not_remembered_for_the_other_mode(probe, with_table: Callable) -> None:
    """In one thread, in others, and for the whole process; a pin of another order is refused."""
    with_table(tuned=())
    number = class_code(Need.BIAS, "float8_e4m3fn", "bfloat16")
    calls = [call_of_sizes(number, m, 2048, 16384) for m in (1, 16, 64, 300, 4096)]

    def chosen() -> list[int]:
        return [probe.build.choose(call, SMS)[0] for call in calls]

    free, order = chosen(), lambda row: probe.build.invariance.order(row, calls[0])
    assert len({order(row) for row in free}) > 1, "few rows choose slices, many none"
    for _ in range(2):
        with gemmill.batch_invariant():
            held = chosen()
            assert held == chosen() and len({order(row) for row in held}) == 1
            assert [select(probe.build.table, call, SMS, None, probe.build.invariance).row for call in calls] == held
        assert chosen() == free
    gemmill.set_batch_invariant()
    try:
        found: list[list[int]] = []
        thread = threading.Thread(target=lambda: found.append(chosen()))
        thread.start()
        thread.join()
        assert found == [held] and chosen() == held
        with gemmill.batch_invariant(False):
            assert chosen() == free
    finally:
        gemmill.set_batch_invariant(False)
    assert chosen() == free
    other = next(row for row in free if order(row) != order(held[0]))
    before = probe.build.pin(probe.build.table.rows_of(probe.build.table.entries[other].name)[0])
    try:
        assert probe.build.choose(calls[1], SMS) == (other, Trust.PINNED)
        with gemmill.batch_invariant():
            assert probe.build.choose(calls[1], SMS)[0] == -1
    finally:
        probe.build.pin(before)
