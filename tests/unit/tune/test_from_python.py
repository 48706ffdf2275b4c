"""`gemmill.tune`: its calls of the sweep, and the changed choices."""

from dataclasses import replace
from pathlib import Path

import pytest

import gemmill
from gemmill.runtime import ops
from gemmill.space.selections import select
from gemmill.tuner import beside
from gemmill.tuner.program import stand_in_build, tune
from gemmill.tuner.shapes import ShapesError

SHAPES = [{"op": "fp8", "m": [16, 700], "n": 64, "k": 128}, {"op": "int8", "m": 3, "n": 64, "k": 128}]


class Loaded:
    """A build that counts how often it reads its tables."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.reads = folder, 0

    def read_tables(self) -> None:
        self.reads += 1


@pytest.fixture
def loaded(put_build, home, monkeypatch) -> Loaded:
    build = Loaded(home / "builds" / put_build().build_id)
    monkeypatch.setattr(beside, "active", lambda: build)
    monkeypatch.setattr(ops, "_loaded", {build.folder: build})
    return build


def test_shapes_are_measured_and_the_loaded_builds_read_the_table(loaded, home, tmp_path, monkeypatch) -> None:
    asked = []

    def dry(request):
        asked.append(request)
        stand_in = {"builds": [stand_in_build(select("smoke"))], "dry_run": True, "journal": tmp_path / "j.jsonl"}
        return tune(replace(request, **stand_in))

    monkeypatch.setattr(beside, "tune", dry)
    rows = gemmill.tune(SHAPES, table=tmp_path / "table.json", candidates=3)
    (request,) = asked
    assert [folder for folder, _ in request.builds] == [loaded.folder] and request.options.most == 3
    assert {(row.op, *row.sizes.values()) for row in rows} == {
        ("fp8", 64, 128, 16),
        ("fp8", 64, 128, 700),
        ("int8", 64, 128, 3),
    }
    assert all(row.us[0] > 0 for row in rows) and (tmp_path / "table.json").is_file()
    assert loaded.reads == 1


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        ([], "no shapes: a shape is for example {"),
        ([{"m": 1, "n": 2, "k": 3}], "shape 1 has no op, expected one of fp8, "),
        ([SHAPES[0], {"op": "fp9"}], "shape 2 has op = 'fp9', expected one of fp8, "),
        ([(16, 64, 128)], "shape 1 is (16, 64, 128), expected an object such as {"),
    ],
)
def test_shapes_that_are_none_are_named(shapes, sentence: str, loaded) -> None:
    with pytest.raises(ShapesError) as caught:
        gemmill.tune(shapes)
    assert str(caught.value).startswith(sentence)
    assert loaded.reads == 0


def test_without_what_measures_it_says_what_to_install(monkeypatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name="gemmill.tuner")

    monkeypatch.setattr("gemmill.tuning.import_module", missing)
    with pytest.raises(ImportError) as caught:
        gemmill.tune(SHAPES)
    assert str(caught.value) == (
        "gemmill.tune measures variants, and there is no gemmill.tuner here: `pip install 'gemmill[tune]'`"
    )
