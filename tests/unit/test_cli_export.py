"""`gemmill export`: the shape that it takes, and its refusals before it loads anything."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gemmill.families import quant
from gemmill.numerics import recording
from gemmill.registry import REGISTRY
from gemmill.runtime import library, tuned
from gemmill.runtime.dumps import Dumps
from gemmill.runtime.schemas import BY_NAME
from gemmill.runtime.table_file import Source, TableRow, make_table, table_text
from gemmill.space.names import alias_of, to_name
from gemmill.space.selections import select
from gemmill.wheel import reproducer


@pytest.fixture
def written(monkeypatch) -> list[tuple[str, str]]:
    """Call and expectation of each export, in place of its files."""
    told: list[tuple[str, str]] = []

    def note(config: object, recorded: object, call: str, expected: str) -> SimpleNamespace:
        told.append((call, expected))
        script = SimpleNamespace(path=Path("build.sh"), text="#!/bin/sh\n")
        return SimpleNamespace(files=(script,), data=b"operands")

    monkeypatch.setattr(library, "Build", lambda folder: folder)
    monkeypatch.setattr(recording, "record", lambda build, name, case: None)
    monkeypatch.setattr(reproducer, "reproducer", note)
    return told


@pytest.fixture
def timed(put_build, make_config, home, monkeypatch, tmp_path):
    """A variant, built, that a table timed at two shapes."""
    config = make_config()
    put_build(config)
    source = Source(gpu="NVIDIA H200", date="2026-11-20", program="gemmill tune")
    rows = [
        TableRow(
            op="fp8", sizes={"n": 4096, "k": 512, "m": m}, variants=("x", to_name(config)), us=(5.0, us), source="s"
        )
        for m, us in ((16, 6.25), (64, 7.5))
    ]
    monkeypatch.setattr(tuned, "_SHIPPED", tmp_path / "shipped")
    (home / "tables").mkdir()
    (home / "tables" / "t.json").write_text(table_text(make_table("NVIDIA H200", "sm90a", {"s": source}, rows)))
    return to_name(config)


@pytest.mark.parametrize(("asked", "m", "us"), [((), 16, "6.25"), (("-m", 64), 64, "7.5")])
def test_the_shape_is_one_that_was_measured(gemmill, timed, written, tmp_path, asked, m, us) -> None:
    outcome = gemmill("export", alias_of(timed), *asked, "--out", tmp_path / "it")
    assert (outcome.code, outcome.out) == (0, f"{tmp_path / 'it' / 'build.sh'} compiles and runs it\n")
    ((call, expected),) = written
    assert call.startswith(f"cutlass_scaled_mm: M, N, K = {m}, 4096, 512; ") and call.endswith("; exact")
    assert expected == f"; it took {us} us with the weights in memory, by the table of gemmill"
    assert (tmp_path / "it" / "data.bin").read_bytes() == b"operands"
    assert (tmp_path / "it" / "build.sh").stat().st_mode & 0o111


def test_another_shape_must_be_named_whole(gemmill, timed, written, tmp_path) -> None:
    outcome = gemmill("export", timed, "-m", 17, "--out", tmp_path / "it")
    assert (outcome.code, outcome.err) == (
        2,
        f"gemmill: no tuned table has {timed} at such a shape: name one with -m and -n and -k\n",
    )
    assert gemmill("export", timed, "-m", 17, "-n", 64, "-k", 128, "--out", tmp_path / "it").code == 0
    assert written[0][1] == ""


def test_sizes_are_the_familys_own(gemmill, put_build, written, tmp_path) -> None:
    config = REGISTRY.configs_of(quant.NAME, select("smoke").configs)[0]
    name = put_build(config).entries[0].name
    assert gemmill("export", name, "-m", 5, "--hidden", 256, "--out", tmp_path / "it").code == 0
    assert " 5 x 256, " in written[0][0]
    refused = gemmill("export", name, "-m", 5, "-k", 256)
    assert (refused.code, refused.err) == (
        2,
        f"gemmill: {name} with -k: its calls have no such size, leave it out\n",
    )
    assert gemmill("export", name, "-m", 5).err == (
        f"gemmill: no tuned table has {name} at such a shape: name one with -m and --hidden\n"
    )


def test_what_is_not_built_is_refused(gemmill, home, put_build, make_config) -> None:
    name = to_name(REGISTRY.configs_of(quant.NAME, select("smoke").configs)[0])
    put_build(make_config())
    outcome = gemmill("export", name)
    assert (outcome.code, outcome.err) == (
        2,
        f"gemmill: {name} is not in a build: `gemmill build --filter {name}` makes one to export it from\n",
    )
    assert gemmill("export").err == (
        "gemmill: name a variant, a saved call by --from, or builds by --hub: `gemmill list` has the names\n"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--from", "x", "-m", 5), "--from with -m: the file says which call it is, leave -m out"),
        (("x", "--from", "x"), "--from with NAME: the file says which call it is, leave NAME out"),
        (("--hub", "--from", "x"), "--hub with --from: it writes whole builds, leave --from out"),
        (("--from", "x"), "x cannot be read: No such file or directory; check the name, or bring the file back"),
    ],
)
def test_a_saved_call_says_all(gemmill, home, arguments, sentence) -> None:
    assert gemmill("export", *arguments).err == f"gemmill: {sentence}\n"


def test_a_saved_call_is_exported(gemmill, put_build, make_config, written, tmp_path) -> None:
    name = put_build(make_config()).entries[0].name
    op = BY_NAME["cutlass_scaled_mm"]
    given = [torch.zeros(2, 16, dtype=torch.bfloat16), torch.ones(2, 16), torch.ones(16, 16).t()]
    given = [x.to(torch.float8_e4m3fn) if i else x for i, x in enumerate(given)]

    def explain(_op: str, _args: object) -> tuple[str, SimpleNamespace]:
        return "0123abcd4567", SimpleNamespace(entry=SimpleNamespace(name=name))

    dumps = Dumps(tmp_path / "calls", explain, 1, 1 << 20, lambda: False)
    dumps.around(op, lambda *args: args[0].fill_(17))(*given, torch.ones(1, 1), torch.ones(1, 1), None)
    (path,) = (tmp_path / "calls").iterdir()
    outcome = gemmill("export", "--from", path, "--out", tmp_path / "it")
    assert (outcome.code, outcome.out) == (
        0,
        "out, as it was written then, is 6.2e-02 off the reference, relative in the norm\n"
        f"{tmp_path / 'it' / 'build.sh'} compiles and runs it\n",
    )
    assert written == [
        ("cutlass_scaled_mm: out 2 x 16, a 2 x 16, b 16 x 16, a_scales 1 x 1, b_scales 1 x 1, as saved on cpu", "")
    ]
