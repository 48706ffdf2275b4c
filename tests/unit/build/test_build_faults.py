"""Faults outside the source: full disks, killed compilers, folders that cannot or must not be written."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gemmill.build import compiling, linking
from gemmill.build.driver import build
from gemmill.build.errors import BuildError
from gemmill.build.ledger import Ledger
from gemmill.build.options import BuildOptions
from gemmill.space.names import to_name
from gemmill.space.selections import Selection

from .built import builds, left_over, object_of
from .conftest import FakeToolkit

Make = Callable[..., Selection]


def test_full_disk_under_the_compiler(toolkit: FakeToolkit, options: BuildOptions, make_selection: Make) -> None:
    good = build(make_selection(64), options)
    toolkit.set("diskfull")
    with pytest.raises(
        BuildError,
        match=r"^the disk is full \(compiling .*\): free some space, or name another folder with GEMMILL_HOME$",
    ):
        build(make_selection(128), options)
    assert builds(options.home_dir) == [good.folder.name] and not left_over(options.home_dir)
    toolkit.unset("diskfull")
    assert not build(make_selection(128), options).rejected  # not remembered as the variant's fault


NOT_ABOUT_THE_SOURCE = (
    "nvcc fatal   : Could not open output file '/gone/tmpxft_00005219_0000000a'",
    "inc.cu:1:10: fatal error: cuda_fp8.h: No such file or directory",
    "cc1plus: fatal error: /cuda/include/tbb.h: Too many open files",
    "Fatal error: can't create /gone/ok.o: No such file or directory",
    "unit.cu(3): catastrophic error: could not open /tmp/x: Permission denied",
    "",
)


def test_what_is_not_about_the_source_is_not_remembered(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make
) -> None:
    selection = make_selection(64)
    for tries, message in enumerate(NOT_ABOUT_THE_SOURCE, 1):
        toolkit.set("says", f"1 {message}")
        with pytest.raises(BuildError) as caught:
            build(selection, options)
        wanted = f"{to_name(selection.configs[0])} was not compiled: {message or 'the compiler gave no reason'}"
        assert str(caught.value) == wanted
        assert not list(options.home_dir.glob("cache/ledger/*")) and not left_over(options.home_dir)
        assert len(toolkit.calls()) == tries, "it is tried again"
    toolkit.unset("says")
    assert not build(selection, options).rejected


ABOUT_THE_SOURCE = {
    128: (255, "ptxas error   : Entry function 'f' uses too much shared data (0x61a80 bytes, 0x38c00 max)"),
    192: (255, "ptxas /tmp/tmpxft_1.ptx, line 21; error   : Unknown modifier '.bar'"),
    256: (1, "kernels/a.cuh(88): Error: Formal parameter space overflowed"),
    320: (1, "a.cu:3:5: internal compiler error: in f, at g.cc:1"),
}
"""The compiler's message about tiles of so many rows, with its exit code."""


def test_what_is_about_the_source_is_remembered(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make
) -> None:
    build(make_selection(64), options)
    for known, (rows, (code, message)) in enumerate(ABOUT_THE_SOURCE.items(), 1):
        toolkit.set("says", f"{code} {message}")
        result = build(make_selection(64, rows), replace(options, jobs=1))
        assert [row.error for row in result.rejected] == [message]
        assert len(list(options.home_dir.glob("cache/ledger/*"))) == known


@pytest.mark.parametrize("where", ["extension", "manifest", "ledger", "working folder"])
def test_full_disk_under_the_build(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    good = build(make_selection(64), options)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    if where == "ledger":
        toolkit.set("bad", "t128x")
    target = {
        "extension": (linking, "sync_file"),
        "manifest": (linking, "write_manifest"),
        "ledger": (Ledger, "record"),
        "working folder": (compiling, "run_graph"),
    }[where]
    monkeypatch.setattr(*target, full)
    with pytest.raises(BuildError) as caught:
        build(make_selection(64, 128), options)
    assert str(caught.value) == (
        f"the disk is full (building in {options.home}): free some space, or name another folder with GEMMILL_HOME"
    )
    assert builds(options.home_dir) == [good.folder.name] and not left_over(options.home_dir)


def test_home_that_cannot_be_written(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match=r"^building failed on .*file/home.*: Not a directory$"):
        build(make_selection(64), replace(options, home=tmp_path / "file" / "home"))


def test_home_without_permission(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(BuildError) as caught:
        build(make_selection(64), options)
    assert str(caught.value) == (
        f"cannot write {options.home} (building): Permission denied; make it writable, or name another folder with GEMMILL_HOME"
    )


@pytest.mark.parametrize("name", [".", "builds", "cache", "cache/objects", "cache/headers", "memo"])
def test_home_that_others_can_write(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    build(make_selection(64), options)
    folder = options.home_dir / name
    folder.chmod(0o777)
    with pytest.raises(BuildError) as caught:
        build(make_selection(64), options)
    assert str(caught.value) == (
        f"{folder} can be written by every user, and its code would run here: `chmod o-w {folder}`, "
        "or set GEMMILL_SHARED_HOME=1 to trust them"
    )
    monkeypatch.setenv("GEMMILL_SHARED_HOME", "1")
    assert build(make_selection(64), options).reused


@pytest.mark.parametrize("what", ["object", "entry", "its folder", "memo", "build"])
def test_what_others_can_write_is_made_again(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, what: str
) -> None:
    first = build(make_selection(64), options)
    path = object_of(options.home_dir, to_name(make_selection(64).configs[0]))
    place = {"object": path, "entry": path.with_name("entry.json"), "its folder": path.parent, "build": first.folder}
    place.setdefault("memo", options.home_dir / "memo" / "files.json").chmod(0o777)
    place[what].chmod(0o777)
    again = build(make_selection(64), options)
    assert (len(toolkit.calls()), again.reused) == {"memo": (1, True), "build": (1, False)}.get(what, (2, True))
    assert not place[what].stat().st_mode & 0o022


def test_a_build_is_the_users_own_whatever_the_umask(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make
) -> None:
    before = os.umask(0)
    try:
        build(make_selection(64), options)
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    open_to_others = [path for path in options.home_dir.rglob("*") if path.stat().st_mode & 0o022]
    assert open_to_others == [] and build(make_selection(64), options).reused
