"""Journals packed with xz, as those that made the shipped table are."""

import json
import lzma
from pathlib import Path

import pytest

from gemmill.tuner.journal import Journal, JournalError, read_journal

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


def test_table_make_reads_it_too(gemmill, home, tmp_path) -> None:
    """It needs the builds that were measured, which are long gone: so far it comes."""
    outcome = gemmill("table", "make", min(JOURNALS, key=lambda p: p.stat().st_size), "--out", tmp_path / "t.json")
    assert outcome.code == 3 and outcome.err.startswith("gemmill: no build '")


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
