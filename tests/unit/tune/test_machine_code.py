"""Measured rows follow a kernel whose machine code is the same, whatever it is made from."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gemmill.cli.build import _let_tables_name_machine_code
from gemmill.manifest import Manifest, write_manifest
from gemmill.runtime.machine_code import is_same, noted
from gemmill.runtime.table_file import Quarantined, Source, TableRow, TunedTable, make_table, read_table, table_text
from gemmill.runtime.tuned import current_row
from gemmill.space.names import to_name

SAME, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def configs(make_config: Callable) -> list:
    return [make_config(), make_config(tile_shape_mnk=(128, 64, 128))]


@pytest.fixture
def make_build(make_manifest: Callable[..., Manifest], configs: list) -> Callable[..., Manifest]:
    """A build whose kernels are made from `source`; `sass` has the machine code of each."""

    def make(source: str, *sass: str, registers: int = 168, build_id: str = "0123abcd4567") -> Manifest:
        manifest = make_manifest(*configs, build_id=build_id, extension=f"gemmill_{build_id}.so")
        entries = [
            replace(entry, source_digest=source * 64, sass_digest=code, registers=registers)
            for entry, code in zip(manifest.entries, sass, strict=True)
        ]
        return replace(manifest, entries=tuple(entries))

    return make


@pytest.fixture
def table(configs: list) -> TunedTable:
    """One row of both kernels, as the build of source 1 has them."""
    source = Source(gpu="NVIDIA H200", date="2026-11-21", program="gemmill tune")
    row = TableRow(
        op="fp8",
        sizes={"n": 64, "k": 128, "m": 16},
        us=(5.0, 5.1),
        digests=("1" * 16, "1" * 16),
        source="s",
        variants=tuple(map(to_name, configs)),
    )
    return make_table(
        "NVIDIA H200", "sm90a", {"s": source}, [row, replace(row, sizes=row.sizes | {"m": 1}, digests=())]
    )


def served(table: TunedTable, build: Manifest) -> list[int]:
    """How many variants of each row a build has as they were measured."""
    built = {entry.name: entry for entry in build.entries}
    current = [current_row(row, built) for row in table.rows]
    return [0 if row is None else len(row.variants) for row in current]


def test_rows_follow_machine_code_whatever_it_is_made_from(make_build: Callable, table: TunedTable) -> None:
    assert served(table, make_build("2", SAME, SAME)) == [2, 0], "its machine code is not known"
    assert served(table, make_build("2", "", "")) == [2, 0], "neither is"
    known = noted(table, [make_build("1", SAME, SAME)])
    assert known.rows[1].codes == (f"{SAME[:16]}r168",) * 2 and known.rows[1].digests == ("1" * 16,) * 2
    assert served(known, make_build("2", SAME, SAME)) == [2, 2]
    assert served(known, make_build("2", SAME, OTHER)) == [2, 1]
    assert served(known, make_build("2", OTHER, OTHER)) == [2, 0]
    assert served(known, make_build("2", SAME, SAME, registers=160)) == [2, 0]
    assert served(known, make_build("2", "", "")) == [2, 0]
    assert served(known, make_build("1", OTHER, OTHER)) == [2, 2], "another compiler, the same sources"


def test_a_build_of_other_sources_takes_the_rows_over(make_build: Callable, table: TunedTable) -> None:
    known = noted(table, [make_build("1", SAME, SAME)])
    after = noted(known, [make_build("2", SAME, OTHER)])
    assert after.rows[1].digests == ("2" * 16, "1" * 16) and after.rows[1].codes == known.rows[1].codes
    both = [make_build("2", SAME, SAME), make_build("1", SAME, SAME)]
    assert noted(known, both) == known, "as long as the measured build is there, it counts"


@pytest.mark.parametrize("what", ["no machine code", "another build"])
def test_what_is_not_known_is_not_noted(make_build: Callable, table: TunedTable, what: str) -> None:
    build = make_build("1", "", "") if what == "no machine code" else make_build("3", SAME, SAME)
    assert noted(table, [build]) == table


def test_quarantine_follows_machine_code(make_build: Callable, table: TunedTable) -> None:
    name = table.rows[1].variants[0]
    fault = Quarantined(variant=name, digest="1" * 16, why="a fault")
    known = noted(replace(table, quarantined=(fault,)), [make_build("1", SAME, SAME)]).quarantined[0]
    other = make_build("2", SAME, SAME)
    entry = next(entry for entry in other.entries if entry.name == name)
    assert not is_same(entry, fault.digest, fault.code) and is_same(entry, known.digest, known.code)


def test_a_table_of_codes_is_read_as_it_was_written(make_build: Callable, table: TunedTable, tmp_path: Path) -> None:
    known = noted(table, [make_build("1", SAME, "")])
    assert known.rows[1].codes == (f"{SAME[:16]}r168", "")
    (tmp_path / "table.json").write_text(table_text(known))
    assert read_table(tmp_path / "table.json") == known


def put(home: Path, manifest: Manifest) -> None:
    folder = home / "builds" / manifest.build_id
    folder.mkdir(parents=True)
    write_manifest(manifest, folder / "manifest.json")


def test_building_carries_the_homes_rows_over(home: Path, make_build: Callable, table: TunedTable, capsys) -> None:
    """The first build measured them; the second one, of other sources, is the newest."""
    put(home, make_build("1", SAME, SAME))
    put(home, make_build("2", SAME, SAME, build_id="89abcdef0123"))
    path, damaged = home / "tables" / "nvidia-h200.json", home / "tables" / "other.json"
    path.parent.mkdir()
    path.write_text(table_text(table))
    damaged.write_text("{")
    _let_tables_name_machine_code(home)
    assert served(read_table(path), make_build("2", SAME, SAME)) == [2, 2]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"gemmill: the machine code of measured kernels was not noted in {damaged}: table {damaged} is not JSON"
    )


def test_a_merge_notes_what_a_build_runs(
    gemmill: Callable, home: Path, make_build: Callable, table: TunedTable, tmp_path: Path
) -> None:
    put(home, make_build("2", SAME, SAME))
    path = tmp_path / "table.json"
    path.write_text(table_text(noted(table, [make_build("1", SAME, SAME)])))
    assert gemmill("table", "merge", path, "--current", "0123abcd4567", "--out", path).code == 0
    assert read_table(path).rows[1].digests == ("2" * 16,) * 2
