"""Journals packed with xz, as those that made the shipped table are."""

import json
import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from gemmill.locations import runtime_tables_dir
from gemmill.runtime.table_file import read_table
from gemmill.space.names import parse_name, to_name
from gemmill.space.selections import select
from gemmill.tuner import program
from gemmill.tuner.journal import Journal, JournalError, read_journal
from gemmill.tuner.protocol import PEER
from gemmill.tuner.report import report_text

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
JOURNALS = sorted(RESULTS.glob("*.jsonl.xz"))


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.name)
def test_committed_journals_are_read_as_they_lie(path: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(lzma.decompress(path.read_bytes()))
    packed, unpacked = read_journal(path), read_journal(plain)
    assert packed == unpacked and packed.entries


def test_prune_reads_what_made_the_shipped_table(gemmill, tmp_path) -> None:
    journal = min(JOURNALS, key=lambda path: path.stat().st_size)
    outcome = gemmill("prune", journal, "--out", tmp_path / "small.json")
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads((tmp_path / "small.json").read_text())["variants"]


def test_prune_reads_tables(gemmill, tmp_path) -> None:
    """Of the shipped table's shapes: nobody loses more than was asked for, and all is from `default`."""
    (table,) = runtime_tables_dir().glob("*h200.json")
    outcome = gemmill("prune", table, "--within", "2%", "--out", tmp_path / "small.json")
    assert (outcome.code, outcome.err) == (0, "")
    kept = set(json.loads((tmp_path / "small.json").read_text())["variants"])
    assert kept < {to_name(config) for config in select("default").configs}
    assert f" suffice for {len(read_table(table).rows)} shapes, " in outcome.out
    kernels = {to_name(parse_name(name).compiled) for name in kept}
    for row in read_table(table).rows:
        near = {name for name, us in zip(row.variants, row.us, strict=True) if us <= 1.02 * row.us[0]}
        assert any(to_name(parse_name(name).compiled) in kernels for name in near), row


def test_table_make_reads_it_too(gemmill, home, tmp_path) -> None:
    """Its builds are long gone, and an older journal has no digests of them: its rows have none."""
    journal = min(JOURNALS, key=lambda path: path.stat().st_size)
    outcome = gemmill("table", "make", journal, "--out", tmp_path / "t.json", "--report", tmp_path / "t.html")
    assert outcome.code == 0
    builds = sorted(
        {Path(build).name for e in read_journal(journal).entries.values() for build in e.outcome.builds.values()}
    )
    told = outcome.err.splitlines()
    assert [line for line in told if not line.endswith(" until `gemmill tune` measures them again")] == []
    assert all(
        any(f"of build {build}, which is not here" in line for line in told) for build in builds if build != PEER
    )
    table = read_table(tmp_path / "t.json")
    assert table.arch == "sm90a" and table.rows and not any(row.digests for row in table.rows)
    assert (tmp_path / "t.html").read_text().startswith("<!doctype html>")


def test_a_table_and_a_report_are_made_of_a_journal_alone(gemmill, home, tmp_path, monkeypatch) -> None:
    """With the digests of a build that is gone: the same table as the sweep wrote."""
    (tmp_path / "shapes.csv").write_text("m,n,k\n16,256,512\n")
    entry = program._stand_in_entry
    monkeypatch.setattr(program, "_stand_in_entry", lambda config: replace(entry(config), source_digest="5" * 64))
    journal, tuned, made = (tmp_path / name for name in ("sweep.jsonl", "tuned.json", "made.json"))
    arguments = ("--shapes", tmp_path / "shapes.csv", "--dry-run", "--no-peers", "--journal", journal, "--table", tuned)
    assert gemmill("tune", *arguments).code == 0
    packed = tmp_path / "sweep.jsonl.xz"
    packed.write_bytes(lzma.compress(journal.read_bytes()))
    outcome = gemmill("table", "make", packed, "--out", made)
    assert (outcome.code, outcome.err) == (0, "")
    assert read_table(made) == read_table(tuned)
    assert set(read_table(made).rows[0].digests) == {"5" * 16}


def test_the_report_of_the_site_is_made_of_its_journal() -> None:
    (path,) = (RESULTS.parents[1] / "docs" / "reports").iterdir()
    record = read_journal(RESULTS / f"{path.stem}.jsonl.xz")
    assert path.read_text() == report_text(record)
    assert path.stat().st_size < 200_000, "the repository and the site carry it"


def test_a_damaged_one(tmp_path) -> None:
    whole = JOURNALS[0].read_bytes()
    for data in (b"no xz", whole[: len(whole) // 2]):
        (tmp_path / "x.jsonl.xz").write_bytes(data)
        with pytest.raises(JournalError) as caught:
            read_journal(tmp_path / "x.jsonl.xz")
        assert str(caught.value).startswith(f"journal {tmp_path}/x.jsonl.xz cannot be unpacked (")
        assert str(caught.value).endswith("): pack it again with xz, or name it without .xz")


def test_nothing_is_added_to_one(tmp_path) -> None:
    with pytest.raises(JournalError) as caught:
        Journal(tmp_path / "x.jsonl.xz", {})
    assert str(caught.value) == (
        f"journal {tmp_path}/x.jsonl.xz is packed, nothing can be added: unpack it, or name another with --journal"
    )
    assert not list(tmp_path.iterdir())
