"""Which build serves: the ways to make one current, and each sentence."""

import json
import logging
from pathlib import Path

import pytest

from gemmill import __version__
from gemmill.manifest import ManifestError
from gemmill.manifest.schema import own_digest
from gemmill.runtime import builds, notices
from gemmill.runtime.table_file import Source, TableRow, make_table
from gemmill.runtime.tuned import LoadedTable, Tuned
from gemmill.vocab import DType


@pytest.fixture
def two(put_build, make_config):
    """A default build of two variants, then a smoke build of one."""
    put_build(make_config(), make_config(a_dtype=DType.S8), build_id="whole", selection="default")
    put_build(make_config(), build_id="small", selection="smoke")


def sentence(call, *arguments, **options) -> str:
    with pytest.raises(ManifestError) as caught:
        call(*arguments, **options)
    return str(caught.value)


def test_the_current_build_serves_whatever_is_newer(two, home) -> None:
    assert builds.serving("sm90a") == builds.newest("sm90a")
    builds.use(home / "builds" / "whole")
    assert (home / "current" / "sm90a").read_text() == "whole\n"
    for arch in ("sm90a", None):
        assert builds.serving(arch)[1].build_id == "whole"
    builds.use(home / "builds" / "small")
    assert builds.serving("sm90a")[1].build_id == "small"


def test_each_architecture_has_its_own(two, put_build, home) -> None:
    put_build(build_id="other", arch="sm120f")
    builds.use(home / "builds" / "other")
    builds.use(home / "builds" / "whole")
    assert [builds.serving(arch)[1].build_id for arch in ("sm90a", "sm120f")] == ["whole", "other"]


def test_a_current_build_that_is_gone(two, home) -> None:
    (home / "current").mkdir()
    (home / "current" / "sm90a").write_text("gone\n")
    said = sentence(builds.serving, "sm90a")
    assert said.startswith(f"build 'gone', the current one for sm90a, is no longer in {home} (there: ")
    assert said.endswith("): make another current with `gemmill builds use`, or run `gemmill build`")


def test_a_marker_that_says_nothing(two, home) -> None:
    (home / "current").mkdir()
    (home / "current" / "sm90a").write_bytes(b"\xff\xfe")
    said = sentence(builds.serving, "sm90a")
    assert said.startswith(f"{home}/current/sm90a does not say which build is current (")
    assert said.endswith("): `gemmill builds use ID` writes it again")
    (home / "current" / "sm90a").unlink()
    (home / "current" / "sm120f").write_text("whole\n")
    assert sentence(builds.serving, "sm120f") == (
        "build whole, the current one for sm120f, is for sm90a: make another current with `gemmill builds use`"
    )


def test_a_build_from_elsewhere_cannot_be_current(two, home, tmp_path) -> None:
    (home / "builds" / "whole").rename(tmp_path / "whole")
    assert sentence(builds.use, tmp_path / "whole") == (
        f"build {tmp_path}/whole is not in {home}, so it cannot be current there: "
        f"set GEMMILL_BUILD={tmp_path}/whole, or name its home with GEMMILL_HOME"
    )


GOES_ON = (
    "build whole goes on serving sm90a, with 2 variants of default: `gemmill builds use small` makes this one serve"
)
TAKES = "build {} serves sm90a from now on, in place of {}: `gemmill builds use {}` goes back"


@pytest.mark.parametrize(
    ("made", "before", "options", "said"),
    [
        ("small", "whole", {}, GOES_ON),
        ("small", "whole", {"wanted": False}, GOES_ON),
        ("small", "whole", {"wanted": True}, TAKES.format("small", "whole", "whole")),
        ("whole", "small", {}, TAKES.format("whole", "small", "small")),
        ("small", "small", {}, "build small serves sm90a"),
        ("small", None, {}, "build small serves sm90a"),
    ],
)
def test_who_serves_after_a_build(two, home, made, before, options, said) -> None:
    read = {name: builds.resolve(name) for name in ("small", "whole")}
    manifests = {name: builds.use(folder) for name, folder in read.items()}
    (home / "current" / "sm90a").unlink()  # an old home: the newest serves
    settled = builds.settle(
        read[made], manifests[made], manifests.get(before), filtered=False, home=home, **({"wanted": None} | options)
    )
    assert settled == said
    assert builds.serving("sm90a")[1].build_id == said.split()[1]


def test_a_filtered_build_of_the_same_selection_does_not_take_over(two, put_build, make_config, home) -> None:
    part = put_build(make_config(), build_id="part", selection="default")
    _, before = builds.resolve("whole"), builds.use(builds.resolve("whole"))
    folder = builds.resolve("part")
    settled = builds.settle(folder, part, before, filtered=True, wanted=None, home=home)
    assert settled.startswith("build whole goes on serving sm90a")
    settled = builds.settle(folder, part, before, filtered=False, wanted=None, home=home)
    assert settled == TAKES.format("part", "whole", "whole"), "a rule may have taken a variant out"


def test_remove(two, home) -> None:
    builds.use(home / "builds" / "whole")
    assert sentence(builds.remove, home / "builds" / "whole") == (
        "build whole serves sm90a: make another current with `gemmill builds use`, "
        "or remove it all the same with `gemmill builds rm --force whole`"
    )
    builds.remove(home / "builds" / "small")
    assert [folder.name for folder in builds.find_builds()] == ["whole"]
    builds.remove(home / "builds" / "whole", force=True)
    assert builds.find_builds() == [] and builds.current("sm90a") is None
    assert list((home / "work").iterdir()) == []


def test_a_wheels_builds_stay(two, home, monkeypatch) -> None:
    monkeypatch.setattr(builds, "_INSIDE", home / "builds")
    assert sentence(builds.remove, home / "builds" / "small") == (
        "build small is part of an installed package: `pip uninstall gemmill` removes it"
    )


def test_builds_on_the_command_line(gemmill, two, home) -> None:
    assert gemmill("builds", "use", "whole").out == "build whole serves sm90a: 2 variants of default\n"
    listed = {line.split()[0]: line.split() for line in gemmill("builds", "list").out.splitlines() if line.strip()}
    assert listed["2"] == ["2", "builds"]
    assert listed["whole"] == ["whole", "sm90a", "default", "2", "1.0", "MB", "2026-11-20", "12:00", "serves"]
    assert listed["small"][-1] == "12:00"
    rows = json.loads(gemmill("builds", "list", "--json").out)
    assert {row["build"]: row["serves"] for row in rows} == {"whole": True, "small": False}
    assert gemmill("builds", "rm", "small").out == f"removed {home}/builds/small\n"
    assert gemmill("builds", "rm", "whole").code == 3
    assert gemmill("builds", "use", "small").err.startswith("gemmill: no build 'small': it is not the id of one")


def test_a_build_that_cannot_be_read_is_listed_with_its_reason(gemmill, two, home) -> None:
    (home / "builds" / "small" / "manifest.json").write_text("{}")
    outcome = gemmill("builds", "list")
    assert outcome.out.splitlines()[0].strip() == "2 builds"
    (row,) = [line.split() for line in outcome.out.splitlines() if line.split()[:1] == ["small"]]
    assert row[-1] == "damaged"
    assert outcome.err.startswith(f"gemmill: {home}/builds/small/manifest.json is not a manifest")


@pytest.mark.parametrize("schema", [True, False])
def test_a_build_of_another_gemmill_is_a_row_and_can_be_removed(gemmill, two, home, schema: bool) -> None:
    """Of another schema, or with an entry's field that is not known here; its digest says that nobody changed it."""
    path = home / "builds" / "small" / "manifest.json"
    data = json.loads(path.read_text()) | {"gemmill_version": "0.0.9"}
    if schema:
        data["schema_version"] = 3
    else:
        data["entries"][0]["config"]["colour"] = "red"
    path.write_text(json.dumps(data | {"digest": own_digest(data)}))
    outcome = gemmill("builds", "list")
    listed = {line.split()[0]: line.split() for line in outcome.out.splitlines() if line.strip()}
    assert listed["small"][1:4] == ["sm90a", "smoke", "1"] and listed["small"][-2:] == ["of", "0.0.9"]
    assert outcome.err == (
        f"gemmill: this is gemmill {__version__}, which cannot read what another one made: `gemmill builds rm small` "
        "removes it, `gemmill build` makes a build that fits\n"
    )
    if not schema:
        assert sentence(builds.use, home / "builds" / "small") == (
            f"{path} was written by another gemmill, 0.0.9 where this is {__version__} (manifest.entries[0].config has unknown "
            "fields colour): `gemmill builds rm small` removes it, `gemmill build` makes one that fits"
        )
    assert gemmill("builds", "rm", "small").out == f"removed {home}/builds/small\n"
    assert [folder.name for folder in builds.find_builds()] == ["whole"]


@pytest.mark.parametrize(
    ("version", "known", "told"),
    [
        (f"{__version__}+g1299053", True, ["1299053"]),
        (f"{__version__}+g1299053.changed", True, ["1299053*"]),
        (f"{__version__}+g1299053", False, ["1299053", "other"]),
        (__version__, False, ["other"]),
        ("0.0.9+g1299053", False, ["1299053", "of", "0.0.9"]),
    ],
)
def test_builds_of_one_release_are_told_apart_by_commit(gemmill, two, home, version, known, told) -> None:
    builds.use(home / "builds" / "whole")
    path = home / "builds" / "small" / "manifest.json"
    data = json.loads(path.read_text()) | {"gemmill_version": version}
    if not known:
        data["entries"][0]["config"]["colour"] = "red"
    path.write_text(json.dumps(data | {"digest": own_digest(data)}))
    (row,) = [line.split() for line in gemmill("builds", "list").out.splitlines() if line.split()[:1] == ["small"]]
    assert row[row.index("12:00") + 1 :] == told


def test_tuned_rows_that_are_not_built_are_told(make_manifest, caplog, tmp_path) -> None:
    manifest = make_manifest()
    source = Source(gpu="NVIDIA H200", date="2026-11-20T12:00:00+00:00", program="gemmill tune", driver="580.1")
    rows = [
        TableRow(op="fp8", sizes={"n": 64, "k": 128, "m": m}, variants=(name,), us=(5.0,), source="s")
        for m, name in [(16, manifest.entries[0].name), (32, "sm90a_missing"), (64, "sm90a_missing")]
    ]

    def tuned(*rows: TableRow) -> Tuned:
        table = make_table("NVIDIA H200", "sm90a", {"s": source}, rows)
        return Tuned(
            choices=(), tables=(LoadedTable(path=Path("t.json"), table=table, trusts={}, stale=0, refused=0),) * 2
        )

    with caplog.at_level(logging.INFO, logger="gemmill"):
        notices.tell_unbuilt(manifest, tuned(rows[0]))
        assert caplog.text == ""
        notices.tell_unbuilt(manifest, tuned(*rows))
        notices.tell_loaded(manifest, tuned(*rows), tmp_path)
    assert caplog.messages[1] == (
        f"build 0123abcd4567 for sm90a is loaded from {tmp_path}: 1 variants of smoke, 0 measured choices, "
        f"digest {tuned().digest}"
    )
    assert caplog.messages[:1] == [
        "build 0123abcd4567 (1 variants of smoke) has no variant of 2 of 3 tuned rows for sm90a, whose shapes run slower than "
        "measured: `gemmill build --arch sm90a --select default` builds them, `gemmill table show` lists the tables"
    ]
