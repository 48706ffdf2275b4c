"""`gemmill table rebase`: measured rows follow a kernel whose machine code is the same."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gemmill.manifest import Manifest, write_manifest
from gemmill.runtime.table_file import Source, TableRow, TunedTable, make_table, read_table, table_text
from gemmill.space.names import to_name
from gemmill.tuner.tables import rebase

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


def digests_of(table: TunedTable) -> list[tuple[str, ...]]:
    return [row.digests for row in table.rows]


def test_equal_machine_code_is_carried_over(make_build: Callable, table: TunedTable) -> None:
    found = rebase(table, make_build("1", SAME, SAME), make_build("2", SAME, SAME))
    assert digests_of(found.table) == [(), ("2" * 16, "2" * 16)]
    assert (found.carried, found.stale) == (2, ())


def test_other_machine_code_is_to_be_measured_again(make_build: Callable, table: TunedTable) -> None:
    found = rebase(table, make_build("1", SAME, SAME), make_build("2", OTHER, SAME))
    assert digests_of(found.table) == [(), ("1" * 16, "2" * 16)]
    assert found.carried == 1 and [row.key for row in found.stale] == [("fp8", 64, 128, 16)]


@pytest.mark.parametrize("what", ["registers", "no machine code", "not measured with the old build"])
def test_what_is_not_known_to_be_equal_stays(make_build: Callable, table: TunedTable, what: str) -> None:
    old, new = make_build("1", SAME, SAME), make_build("2", SAME, SAME)
    if what == "registers":
        new = make_build("2", SAME, SAME, registers=160)
    elif what == "no machine code":
        old, new = make_build("1", "", ""), make_build("2", "", "")
    else:
        old = make_build("3", SAME, SAME)
    assert rebase(table, old, new).table == table


def put(home: Path, manifest: Manifest) -> None:
    folder = home / "builds" / manifest.build_id
    folder.mkdir(parents=True)
    write_manifest(manifest, folder / "manifest.json")


def test_the_verb(gemmill: Callable, home: Path, make_build: Callable, table: TunedTable, tmp_path: Path) -> None:
    put(home, make_build("1", SAME, SAME))
    put(home, make_build("2", OTHER, SAME, build_id="89abcdef0123"))
    outcome = gemmill("table", "rebase", "0123abcd4567", "89abcdef0123")
    assert outcome.code == 2 and f"no tables in {home / 'tables'}: name one with --table" in outcome.err
    path, again = home / "tables" / "nvidia-h200.json", tmp_path / "again.jsonl"
    path.parent.mkdir()
    path.write_text(table_text(table))
    outcome = gemmill("table", "rebase", "0123abcd4567", "89abcdef0123", "--stale", again)
    assert outcome.code == 0
    assert f"{path}: 1 measured variant carried over, 1 row of 2 to be measured again" in outcome.out
    assert digests_of(read_table(path)) == [(), ("1" * 16, "2" * 16)]
    assert json.loads(again.read_text()) == {"op": "fp8", "m": 16, "n": 64, "k": 128}
    shown = json.loads(gemmill("table", "rebase", "0123abcd4567", "89abcdef0123", "--table", path, "--json").out)
    assert shown == [{"path": str(path), "rows": 2, "carried": 0, "stale": [["fp8", 64, 128, 16]]}]


def test_builds_of_two_architectures(gemmill: Callable, home: Path, make_build: Callable) -> None:
    put(home, make_build("1", SAME, SAME))
    put(home, replace(make_build("2", SAME, SAME, build_id="89abcdef0123"), arch="sm100a"))
    outcome = gemmill("table", "rebase", "0123abcd4567", "89abcdef0123")
    assert outcome.code == 2
    assert "build 0123abcd4567 is for sm90a, build 89abcdef0123 for sm100a: name two of one architecture" in outcome.err
