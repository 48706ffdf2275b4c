"""Tuned tables: as files, as choices for a build, and refusals."""

import json
import os
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gemmill.families.scaled_mm.classes import OWN_CLASSES, Need, class_code, scales_code
from gemmill.manifest import KernelEntry
from gemmill.runtime import tuned
from gemmill.runtime.table_file import (
    Source,
    TableError,
    TableRow,
    TunedTable,
    file_name,
    make_table,
    merge,
    read_table,
    table_text,
)
from gemmill.runtime.tuned import Machine, TableTrust, find_tables, load_tuned, table_files
from gemmill.space.names import to_name
from gemmill.vocab import SCALE_GROUPS, Accumulation, Backend, DType, EpilogueKind, ScaleGranularity, ScaleLayout

H200 = "NVIDIA H200"
HERE = Machine(arch="sm90a", device=H200, driver="580.1")
SOURCE = Source(gpu=H200, date="2026-11-20T12:00:00+00:00", program="gemmill tune", driver="580.1")


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path, home):
    """No tables but those of a test."""
    monkeypatch.setattr(tuned, "_SHIPPED", tmp_path / "shipped")
    monkeypatch.delenv("GEMMILL_TABLES", raising=False)


@pytest.fixture
def names(make_config) -> tuple[str, str]:
    return to_name(make_config()), to_name(make_config(tile_shape_mnk=(128, 64, 128)))


def row(*variants: str, m: int = 16, **changes: object) -> TableRow:
    us = tuple(5.0 + i for i in range(len(variants)))
    return TableRow(
        **({"op": "fp8", "sizes": {"n": 64, "k": 128, "m": m}, "variants": variants, "us": us, "source": "s"} | changes)
    )


def table(*rows: TableRow, device: str = H200, **source: object) -> TunedTable:
    return make_table(device, "sm90a", {"s": replace(SOURCE, **source)}, rows)


@pytest.fixture
def put(home) -> Callable[..., None]:
    def write(found: TunedTable, name: str = "") -> None:
        folder = home / "tables"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / (name or file_name(found.device))).write_text(table_text(found))

    return write


def test_a_table_is_read_as_it_was_written(tmp_path, names) -> None:
    written = table(row(*names, digests=("a" * 64, "b" * 64), tied=2), row(names[1], m=1))
    (tmp_path / "x.json").write_text(table_text(written))
    assert read_table(tmp_path / "x.json") == written
    assert [r.sizes["m"] for r in written.rows] == [1, 16], "in the order of their keys"
    assert written.rows[1].margin == pytest.approx(0.2) and written.rows[0].margin is None
    assert table_text(written).count("\n  {") == 2, "a line for each row"


def test_a_table_of_schema_1_says_the_same(tmp_path, names) -> None:
    written = table(row(*names, digests=("a" * 64, "b" * 64)), row(names[1], m=1))
    data = json.loads(table_text(written)) | {"schema_version": 1}
    data["rows"] = [{"op": found.pop("op")} | found.pop("sizes") | found for found in data["rows"]]
    (tmp_path / "x.json").write_text(json.dumps(data))
    assert read_table(tmp_path / "x.json") == written


def test_sizes_are_known_by_name(put, tmp_path, names) -> None:
    """Whatever their order; a row that does not name those of its variant's family chooses nothing."""
    put(table(row(names[0], sizes={"m": 16, "k": 128, "n": 64})))
    assert chosen() == {16: names[0]}
    (found,) = load_tuned([], HERE).tables
    assert found.table.rows[0].key == ("fp8", 64, 128, 16) and found.table.rows[0].shape == "16 x 64 x 128"
    put(table(row(names[0], sizes={"heads": 8, "length": 128})))
    assert chosen() == {}


def test_the_digest_is_of_the_choices(names) -> None:
    one = table(row(*names))
    assert one.digest == table(row(*names, us=(1.0, 2.0)), driver="1").digest
    assert one.digest != table(row(*reversed(names))).digest


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[", "is not JSON: "),
        ("{}", "has schema version None, this gemmill reads versions 1 to 3: make it again with `gemmill tune`"),
        ('{"schema_version": 7}', "has schema version 7, this gemmill reads versions 1 to 3"),
        ('{"schema_version": 1, "sources": {}}', "is damaged (KeyError: 'rows'): make it again with `gemmill tune`"),
        ('{"schema_version": 1, "sources": {}, "rows": [{"op": "fp8"}]}', "is damaged (KeyError: 'n'): "),
        ('{"schema_version": 2, "sources": {}, "rows": [{"op": "fp8"}]}', "is damaged (KeyError: 'sizes'): "),
        ('{"schema_version": 2, "sources": {}, "rows": [{"sizes": {"n": 1}}]}', "is damaged (TypeError: "),
    ],
)
def test_tables_that_cannot_be_read(text: str, sentence: str, tmp_path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(TableError, match=re.escape(sentence)):
        read_table(tmp_path / "x.json")


DAMAGE = (None, True, 0, -1, 5, 1.5, 1e400, 2**63, "", "x", "\ud800", [], [1], ["x"], [[]], {}, {"a": 1}, "deep")
"""Damaged values; "deep" is a list nested as deep as the reader of JSON bears, and deeper."""


def damaged(value: object) -> Iterator[object]:
    """The value with every part of it left out, and put in the place of it everything of DAMAGE."""
    yield from DAMAGE
    if isinstance(value, dict):
        for name, part in value.items():
            yield {key: kept for key, kept in value.items() if key != name}
            yield value | {name + "x": part}
            yield from (value | {name: other} for other in damaged(part))
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield value[:i] + value[i + 1 :]
            yield from ([*value[:i], other, *value[i + 1 :]] for other in damaged(part))


def survives(path: Path) -> bool:
    """Whether the table is read. It is read or left out with a warning; a table that is read can be used to the end."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tuned.load_tuned([], HERE)
    try:
        found = read_table(path)
    except TableError as error:
        assert any(str(error) in str(warning.message) for warning in told) and len(str(error)) < 1000
        return False
    assert table_text(merge(found, found)) and found.digest
    assert all(row.margin is None or row.margin > -1 for row in found.rows)
    return True


def test_no_damage_makes_a_load_fail(home, names) -> None:
    """Every part of a table left out, and put in its place every kind of other thing; then the text cut at every byte."""
    path = home / "tables" / "x.json"
    path.parent.mkdir(parents=True)
    text = table_text(
        table(row(*names, digests=("a" * 16, "b" * 16)), row(names[0], m=1), clocks_mhz={"clocks.sm": 1800.0})
    )
    outcomes = []
    for other in damaged(json.loads(text)):
        damaged_text = json.dumps(other)
        for depth in (500, 100_000) if '"deep"' in damaged_text else (0,):
            path.write_text(damaged_text.replace('"deep"', "[" * depth + "]" * depth))
            outcomes.append(survives(path))
    assert True in outcomes and outcomes.count(False) > 500
    for end in range(len(text)):
        path.write_text(text[:end])
        assert not survives(path) or end >= len(text.rstrip())
    for i in range(0, len(text), 3):
        path.write_bytes(text[:i].encode() + bytes([ord(text[i]) ^ 0x90]) + text[i + 1 :].encode())
        survives(path)


def test_names_of_any_text_harm_nothing(home, names) -> None:
    path = home / "tables" / "x.json"
    path.parent.mkdir(parents=True)
    parts = names[0].split("_")
    for i, part in enumerate(parts):
        for other in ("", "x", "9", part + "9", part[:-1], part * 2, "\ud800"):
            path.write_text(table_text(table(row("_".join([*parts[:i], other, *parts[i + 1 :]])))))
            assert survives(path)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("variants", [1], "is damaged (TypeError: variants is [1], expected a list of texts): make it again"),
        ("digests", [5], "digests is [5], expected a list of texts"),
        ("us", ["1"], "us is ['1'], expected a list of times"),
        ("us", [0.0], "us is [0.0], expected a list of times"),
        ("sizes", {"m": True}, "m is True, expected a whole number from 1 to 2147483647"),
        ("sizes", {"k": 2**31}, "k is 2147483648, expected a whole number from 1 to 2147483647"),
        ("sizes", [1], "sizes is [1], expected an object of sizes"),
        ("op", None, "op is None, expected a text"),
        ("other", 1, "TableRow has an unknown field 'other'"),
    ],
)
def test_what_is_wrong_with_a_row_is_said(field: str, value: object, sentence: str, tmp_path, names) -> None:
    data = json.loads(table_text(table(row(names[0]))))
    data["rows"][0][field] = value
    (tmp_path / "x.json").write_text(json.dumps(data))
    with pytest.raises(TableError, match=re.escape(sentence)):
        read_table(tmp_path / "x.json")


def test_what_is_no_file_is_left_out(home, names, put, monkeypatch) -> None:
    """A pipe, which nobody writes to; a folder; a name that the system refuses."""
    put(table(row(names[0])))
    os.mkfifo(home / "tables" / "pipe.json")
    (home / "tables" / "folder.json").mkdir()
    monkeypatch.setenv("GEMMILL_TABLES", "/" + "x" * 300)
    with pytest.warns(RuntimeWarning) as caught:
        assert chosen() == {16: names[0]}
    texts = [str(w.message) for w in caught]
    assert any("pipe.json cannot be read: it is no file; it is left out" in text for text in texts)
    assert any("folder.json cannot be read: it is no file" in text for text in texts)
    assert any("xxx cannot be read: File name too long" in text for text in texts)


def test_rows_that_contradict(tmp_path, names) -> None:
    data = json.loads(table_text(table(row(names[0]))))

    def reading(**changes: object) -> str:
        (tmp_path / "x.json").write_text(json.dumps(data | changes))
        with pytest.raises(TableError) as caught:
            read_table(tmp_path / "x.json")
        return str(caught.value)

    assert "has two rows for ('fp8', 64, 128, 16): each shape may have one" in reading(rows=data["rows"] * 2)
    assert "names source 's', which the table lacks" in reading(sources={})
    assert "has 1 variants, 0 times, 0 digests" in reading(rows=[data["rows"][0] | {"us": []}])


def test_merging_replaces_row_by_row(names) -> None:
    merged = merge(table(row(names[0]), row(names[0], m=1)), table(row(names[1])))
    assert [(r.sizes["m"], r.variants) for r in merged.rows] == [(1, (names[0],)), (16, (names[1],))]
    with pytest.raises(TableError, match=r"a table of NVIDIA H100 \(sm90a\) cannot be merged into one of NVIDIA H200"):
        merge(table(), table(device="NVIDIA H100"))


def test_schedules_measured_with_one_epilogue_serve_its_siblings(make_config, put) -> None:
    measured = make_config(epilogue=EpilogueKind.SCALED_BIAS, out_dtype=DType.BF16)
    put(table(row(to_name(measured))))
    choices = load_tuned([], HERE).choices
    assert {choice.call_class for choice in choices} == {
        class_code(need, "float8_e4m3fn", out) for need in (Need.SCALE, Need.BIAS) for out in ("bfloat16", "float16")
    }
    (plain,) = [c for c in choices if c.call_class == class_code(Need.SCALE, "float8_e4m3fn", "float16")]
    half = replace(measured, operands=replace(measured.operands, out_dtype=DType.F16))
    scaled = replace(half, epilogue=EpilogueKind.SCALED)
    assert plain.names == (to_name(scaled), to_name(half))


def test_schedules_measured_with_bf16_operands_serve_f16(make_config, put) -> None:
    measured = make_config(a_dtype=DType.BF16, backend=Backend.CUTEDSL)
    put(table(row(to_name(measured), op="bf16")))
    names = {choice.call_class: choice.names for choice in load_tuned([], HERE).choices}
    of_users = {number for number in names if number >= OWN_CLASSES}  # epilogues that another test has brought
    assert set(names) - of_users == {
        class_code(need, out, out) for need in (Need.SCALE, Need.BIAS) for out in ("bfloat16", "float16")
    }
    half = to_name(make_config(a_dtype=DType.F16, backend=Backend.CUTEDSL))
    assert names[class_code(Need.BIAS, "float16", "float16")] == (half,)


@pytest.mark.parametrize("layout", [ScaleLayout.STRIDED, ScaleLayout.MN_MAJOR])
def test_schedules_measured_with_scales_in_groups_serve_both_layouts(make_config, put, layout: ScaleLayout) -> None:
    """Those of one kind of groups alone. A kernel of one layout is not among the rows of the other."""
    blocks = {"a_scale": ScaleGranularity.GROUP, "b_scale": ScaleGranularity.BLOCK, "group_size": 128}
    measured = make_config(**blocks, scale_layout=layout, accumulation=Accumulation.PROMOTED)
    put(table(row(to_name(measured), op="fp8_groups")))
    kinds = [scales_code(SCALE_GROUPS[0], mn_major=mn_major) for mn_major in (True, False)]
    assert {choice.call_class for choice in load_tuned([], HERE).choices} == {
        class_code(need, "float8_e4m3fn", out, kind)
        for need in (Need.SCALE, Need.BIAS)
        for out in ("bfloat16", "float16")
        for kind in kinds
    }


def chosen(entries=(), here: Machine = HERE) -> dict[int, str]:
    """The first variant by M, of calls with a bias and bf16 results."""
    code = class_code(Need.BIAS, "float8_e4m3fn", "bfloat16")
    return {c.sizes["m"]: c.names[0] for c in load_tuned(entries, here).choices if c.call_class == code}


def test_trust_comes_before_place(put, names, monkeypatch, tmp_path) -> None:
    """Of the rows for a shape: this device's before another's, this driver's before another's, then the first found."""
    put(table(row(names[0]), row(names[0], m=1), device="NVIDIA H100"), "a.json")
    put(table(row(names[1])), "b.json")
    assert chosen() == {1: names[0], 16: names[1]}
    own = tmp_path / "own.json"
    own.write_text(table_text(table(row(names[0]), driver="570.9")))
    monkeypatch.setenv("GEMMILL_TABLES", str(own))
    assert chosen()[16] == names[1]
    own.write_text(table_text(table(row(names[0]))))
    assert chosen()[16] == names[0]
    first, second, third = load_tuned([], HERE).tables
    assert (first.path, first.trusts[TableTrust.EXACT]) == (own, 1)
    assert (second.trusts[TableTrust.OTHER_DEVICE], third.trusts[TableTrust.EXACT]) == (2, 1)


def test_a_row_of_another_compiler_is_trusted_where_the_code_is_the_same(
    put, names, make_manifest, make_config
) -> None:
    """By the winner's machine code, which the row and the build name; a kernel of the CuTe DSL has its own compiler."""
    here = replace(HERE, nvcc="13.5.37")
    entry = replace(make_manifest(make_config()).entries[0], sass_digest="c" * 64, registers=168)
    of_dsl = make_manifest(make_config(backend=Backend.CUTEDSL)).entries[0]

    def trusts(entry: KernelEntry, toolkit: str | None, **changes: object) -> list[TableTrust]:
        put(table(row(entry.name, **changes), toolkit=toolkit))
        (loaded,) = load_tuned([entry], here).tables
        return [trust for trust, number in loaded.trusts.items() if number]

    code = {"digests": ("5555",), "codes": ("c" * 16 + "r168",)}
    assert trusts(entry, "13.0.88") == [TableTrust.COMPILER_CHANGED]
    assert trusts(entry, "13.0.88", **code | {"codes": ("d" * 16 + "r168",)}) == [TableTrust.COMPILER_CHANGED]
    assert trusts(entry, "13.0.88", **code) == trusts(entry, "13.5.37") == trusts(entry, None) == [TableTrust.EXACT]
    assert trusts(of_dsl, "13.0.88") == [TableTrust.EXACT]


def test_many_rows_of_another_device_are_left_to_the_model(put, names) -> None:
    """An H200's fastest of 257 rows and more loses to the model on an H100 (docs/notes/tables.md); where no device is known it serves."""
    put(table(row(names[0], m=256), row(names[1], m=512), device="NVIDIA H100"))
    assert chosen() == {256: names[0]}
    assert chosen(here=Machine(arch="sm90a", device=None, driver=None)) == {256: names[0], 512: names[1]}
    assert chosen(here=Machine(arch="sm90a", device="NVIDIA H100", driver="1.0")) == {256: names[0], 512: names[1]}


def test_without_a_gpu_tables_of_any_device_of_the_architecture_serve(put, names) -> None:
    put(table(row(names[0])))
    assert chosen(here=Machine(arch="sm90a", device=None, driver=None)) == {16: names[0]}
    assert chosen(here=Machine(arch="sm100a", device=None, driver=None)) == {}


def test_a_row_whose_winner_changed_since_is_not_exact(put, names, make_manifest, make_config) -> None:
    """A runner-up of nearly the same time serves in its place; one far behind does not."""
    entries = make_manifest(make_config(), make_config(tile_shape_mnk=(128, 64, 128))).entries
    near, far = (5.0, 5.0 * tuned.STALE_MARGIN), (5.0, 5.2)
    put(
        table(
            row(*names, m=16, us=near, digests=("old", "5555")),
            row(*names, m=32, us=far, digests=("old", "5555")),
            row(*names, m=64, us=far, digests=("5555", "old")),
            row(names[0], m=1, digests=("old",)),
        )
    )
    assert chosen(entries) == {16: names[1], 64: names[0]}
    assert {c.sizes["m"]: c.exact for c in load_tuned(entries, HERE).choices} == {16: False, 64: True}
    (loaded,) = load_tuned(entries, HERE).tables
    assert (loaded.stale, loaded.refused, loaded.trusts[TableTrust.EXACT]) == (1, 2, 2)


def test_of_equally_trusted_rows_one_with_a_current_winner_is_taken(put, names, make_manifest, make_config) -> None:
    entries = make_manifest(make_config(), make_config(tile_shape_mnk=(128, 64, 128))).entries
    put(table(row(*names, us=(5.0, 5.0), digests=("old", "5555"))), "a.json")
    put(table(row(names[0], digests=("5555",))), "b.json")
    assert chosen(entries) == {16: names[0]}


def test_a_digest_is_compared_whole(put, names, make_manifest, make_config) -> None:
    put(table(row(names[0], digests=("5" * 15 + "6",))))
    assert chosen(make_manifest(make_config()).entries) == {}


@pytest.mark.parametrize("kept", [4, 8, 15])
def test_a_digest_is_compared_to_its_end(put, names, make_manifest, make_config, kept: int) -> None:
    """A digest that begins like the variant's is another one."""
    (entry,) = make_manifest(make_config()).entries
    digest = "0123456789abcdef"
    entries = [replace(entry, source_digest=digest * 4)]
    put(
        table(
            row(names[0], digests=(digest,)), row(names[0], m=1, digests=(digest[:kept] + "f" * (16 - kept - 1) + "0",))
        )
    )
    assert chosen(entries) == {16: names[0]}


def test_variants_that_are_not_built_or_not_known_harm_nothing(put, names) -> None:
    put(table(row("sm90a_of_another_time"), row(names[0], m=1)))
    assert chosen() == {1: names[0]}


def test_a_bad_table_is_left_out_with_a_warning(put, names, home, monkeypatch) -> None:
    put(table(row(names[0])))
    (home / "tables" / "bad.json").write_text("{}")
    monkeypatch.setenv("GEMMILL_TABLES", "/none/such.json")
    with pytest.warns(RuntimeWarning) as caught:
        assert chosen() == {16: names[0]}
    texts = [str(w.message) for w in caught]
    assert any("/none/such.json" in text and "it is left out" in text for text in texts)
    assert any("bad.json has schema version None" in text for text in texts)


def test_named_tables_come_first_then_the_home(put, names, monkeypatch, tmp_path) -> None:
    put(table(row(names[0])))
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "x.json").write_text("{}")
    monkeypatch.setenv("GEMMILL_TABLES", f"{tmp_path / 'y.json'}:{folder}")
    assert [path.name for path in table_files()] == ["y.json", "x.json", "nvidia-h200.json"]


def test_digest_tells_processes_that_choose_otherwise(put, names) -> None:
    put(table(row(*names)))
    tuned = load_tuned([], HERE)
    first = tuned.digest
    assert load_tuned([], HERE).digest == first and tuned.digest is first, "an engine asks at each layer"
    put(table(row(*reversed(names))), "nvidia-h200.json")
    assert load_tuned([], HERE).digest != first


def test_the_shipped_table_can_be_read(monkeypatch) -> None:
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shipped = [found for path, found in find_tables("sm90a") if path.is_relative_to(tuned._SHIPPED)]
    (h200,) = shipped
    assert h200.device == H200 and len(h200.rows) > 200
    assert tuned._SHIPPED.joinpath(file_name(H200)).read_text() == table_text(h200), "written by a program"
