"""Tables that several sweeps write."""

import errno
import fcntl
import re
from pathlib import Path
from threading import Thread

import pytest

from gemmill.runtime.table_file import Source, TableError, TableRow, TunedTable, make_table, read_table
from gemmill.tuner import tables
from gemmill.tuner.tables import write_table


def of_row(m: int) -> TunedTable:
    source = Source(gpu="NVIDIA H200", date="2026-11-21", program="gemmill tune")
    row = TableRow(op="fp8", sizes={"n": 64, "k": 128, "m": m}, variants=("a",), us=(1.0,), source="s")
    return make_table("NVIDIA H200", "sm90a", {"s": source}, [row])


def test_sweeps_that_end_together_both_have_their_rows(tmp_path: Path, monkeypatch) -> None:
    """While one merges, as long as it takes, another begins to."""
    path = tmp_path / "nvidia-h200.json"
    write_table(of_row(1), path)
    others = []

    def read_slowly(path: Path) -> TunedTable:
        found = read_table(path)
        if not others:
            others.append(Thread(target=write_table, args=(of_row(3), path)))
            others[0].start()
            others[0].join(timeout=0.5)  # which it spends waiting; unlocked, it would end, and its row be overwritten
        return found

    monkeypatch.setattr(tables, "read_table", read_slowly)
    write_table(of_row(2), path)
    others[0].join()
    assert [row.sizes["m"] for row in read_table(path).rows] == [1, 2, 3]
    assert [found.name for found in path.parent.glob("*.json")] == [path.name], "the lock is not taken for a table"


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "t.json"
    sentence = (
        f"table {path} cannot be locked against another sweep's writing it (No locks available): put it on another"
    )
    with pytest.raises(TableError, match=re.escape(sentence)):
        write_table(of_row(1), path)
    assert not path.exists()
