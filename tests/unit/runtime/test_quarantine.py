"""Variants that went wrong when they were measured: tables say so, and builds do not choose them."""

from dataclasses import replace

import pytest

from gemmill.doctor.extension import examine_tables
from gemmill.doctor.finding import State
from gemmill.runtime import notices, tuned
from gemmill.runtime.choosing import Trust
from gemmill.runtime.select import select
from gemmill.runtime.table_file import Quarantined, Source, TableRow, make_table, merge, read_table, table_text
from gemmill.runtime.tuned import Machine, load_tuned
from gemmill.runtime.variant_table import make_variant_table as make_rows
from gemmill.space.names import to_name
from gemmill.tuner.checking import Fault, Finding
from gemmill.tuner.journal import Entry, Record
from gemmill.tuner.measure import TaskOutcome
from gemmill.tuner.tables import measured_build, tables_of
from gemms import MeasuredOp, gemm

SMS = 132
HERE = Machine(arch="sm90a", device="NVIDIA H200", driver="580.1")
SOURCE = Source(gpu="NVIDIA H200", date="2026-11-20", program="gemmill tune", driver="580.1")
WHY = "wrong at fp8 16 x 4096 x 4096 on 2026-11-20: 3 elements"


@pytest.fixture
def manifest(make_manifest, make_config):
    """Of two tiles; the model prefers the first for few rows."""
    return make_manifest(*(make_config(tile_shape_mnk=(m, 128, 128)) for m in (128, 256)))


@pytest.fixture
def names(manifest) -> list[str]:
    return [entry.name for entry in manifest.entries]


@pytest.fixture
def put(home, monkeypatch, tmp_path):
    monkeypatch.setattr(tuned, "_SHIPPED", tmp_path / "shipped")
    monkeypatch.delenv("GEMMILL_TABLES", raising=False)

    def write(*withheld: Quarantined, variants: tuple[str, ...] = ()) -> None:
        us = tuple(5.0 + i for i in range(len(variants)))
        sizes = {"n": 4096, "k": 4096, "m": 16}
        rows = [TableRow(op="fp8", sizes=sizes, variants=variants, us=us, source="s")] if variants else []
        (home / "tables").mkdir(parents=True, exist_ok=True)
        found = make_table("NVIDIA H200", "sm90a", {"s": SOURCE}, rows, withheld)
        (home / "tables" / "t.json").write_text(table_text(found))
        assert read_table(home / "tables" / "t.json") == found

    return write


def of(entry, digest: str | None = None) -> Quarantined:
    return Quarantined(variant=entry.name, digest=(digest or entry.source_digest)[:16], why=WHY)


def table_of(manifest, found):
    symbols = sorted({entry.symbol for entry in manifest.entries})
    return make_rows(manifest.entries, symbols, found.choices, found.quarantined)


@pytest.mark.parametrize("measured", [False, True])
def test_the_next_best_is_chosen_and_the_reason_is_told(put, manifest, names, shaped_call, measured) -> None:
    variants = tuple(names) if measured else ()
    call = shaped_call(m=16)
    put(variants=variants)
    before = select(table_of(manifest, load_tuned(manifest.entries, HERE)), call, SMS)
    assert before.entry.name == names[0]
    put(of(manifest.entries[0]), variants=variants)
    found = load_tuned(manifest.entries, HERE)
    assert found.quarantined == {names[0]: WHY}
    table = table_of(manifest, found)
    choice = select(table, call, SMS)
    assert (choice.entry.name, choice.trust) == (names[1], Trust.EXACT if measured else Trust.MODEL)
    assert [(other.name, other.reason, other.us) for other in choice.trace] == [
        (names[0], f"it is quarantined: {WHY}", None)
    ]
    assert select(table, call, SMS, pinned=names[0]).entry.name == names[0], "it can be looked into"


def test_a_kernel_that_has_changed_since_is_not_quarantined(put, manifest) -> None:
    put(of(manifest.entries[0], digest="f" * 64))
    assert load_tuned(manifest.entries, HERE).quarantined == {}


def test_ranks_that_choose_alike_have_one_digest(put, manifest, names) -> None:
    put(variants=tuple(names))
    first = load_tuned(manifest.entries, HERE)
    put(of(manifest.entries[1]), variants=tuple(names))
    second = load_tuned(manifest.entries, HERE)
    assert first.digest != second.digest and first.tables[0].table.digest != second.tables[0].table.digest


def test_tables_keep_what_either_quarantined(manifest) -> None:
    first, second = (make_table("d", "sm90a", {}, [], [of(entry)]) for entry in manifest.entries)
    assert set(merge(first, second).quarantined) == {*first.quarantined, *second.quarantined}


def test_doctor_and_log_name_them(put, manifest, names, caplog) -> None:
    assert list(examine_tables(manifest)) == []
    put(of(manifest.entries[0]))
    (finding,) = examine_tables(manifest)
    assert (finding.state, finding.found) == (State.NOTE, f"{names[0]} is not chosen: {WHY}")
    assert finding.advice == f"gemmill verify --filter {names[0]}"
    notices.tell_quarantined(manifest, load_tuned(manifest.entries, HERE))
    assert caplog.messages == [f"build {manifest.build_id}: {names[0]} is quarantined, so it is not chosen: {WHY}"]


def test_a_sweep_quarantines_what_goes_wrong(manifest, names) -> None:
    """Whatever it does wrong; a call that it refuses is none of that."""
    workload = gemm(op=MeasuredOp.FP8, m=16, n=4096, k=4096)

    def tables(fault: Fault):
        outcome = TaskOutcome(
            workload=workload,
            rounds_us={names[1]: (6.0,) * 3},
            findings={names[0]: Finding(fault=fault, detail="3 elements"), "peer": Finding(fault=fault, detail="x")},
            builds={names[1]: "b"},
            device={"gpu": "NVIDIA H200"},
        )
        entry = Entry(outcome=outcome, repeat=0, wave=0, present=None, date="2026-11-20T12:00:00+00:00")
        (found,) = tables_of(
            Record(setup={}, entries={(workload, 0, 0): entry}, builds={"b": measured_build(manifest)}), 1
        )
        return found.quarantined

    assert tables(Fault.WRONG) == (of(manifest.entries[0]),)
    assert tables(Fault.CRASH) == (replace(of(manifest.entries[0]), why=WHY.replace("wrong", "crash")),)
    assert tables(Fault.REFUSED) == ()
    assert to_name(manifest.entries[0].config) == names[0]
