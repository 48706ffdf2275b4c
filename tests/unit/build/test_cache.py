"""Finding objects that together hold the wanted kernels, and looking after the cache."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from gemmill.build.cache import ObjectCache
from gemmill.build.driver import build
from gemmill.build.files import FileMemo, digest
from gemmill.build.maintenance import cache_gc, cache_list, cache_verify
from gemmill.build.options import BuildOptions
from gemmill.build.planning import plan
from gemmill.build.sources import Source, SourceKind
from gemmill.space.names import to_name
from gemmill.space.selections import Selection

from .conftest import FakeToolkit


class Shelf:
    """A cache with objects whose sources are named by letters."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.header = folder / "root" / "a.h"
        self.header.parent.mkdir(parents=True)
        self.header.write_text("1")

    def cache(self) -> ObjectCache:
        return ObjectCache(self.folder / "cache", {"root": self.header.parent}, FileMemo(self.folder / "memo.json"))

    def put(self, letters: str) -> None:
        (self.folder / "o").write_text(letters)
        headers = [["root", "a.h", FileMemo(self.folder / "none").get(self.header)]]
        self.cache().publish(
            self.folder / "o", {key: key for key in letters}, headers, cpu_seconds=1.0, peak_memory_bytes=1
        )

    def keys(self) -> dict[str, str]:
        """The letters of each object, by its key."""
        rows = [json.loads(path.read_text()) for path in self.folder.glob("cache/objects/*/entry.json")]
        return {row["key"]: "".join(row["members"]) for row in rows}

    def found(self, letters: str) -> tuple[list[str], str]:
        sources = [Source(kind=SourceKind.VARIANT, name=c, path=PurePosixPath(c), key=c, seconds=1.0) for c in letters]
        lookup = self.cache().lookup(sources)
        return sorted("".join(entry.members) for entry in lookup.entries), "".join(
            source.key for source in lookup.missing
        )


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


@pytest.mark.parametrize(
    ("objects", "wanted", "expected"),
    [
        (["ab", "cd"], "abcd", (["ab", "cd"], "")),
        (["ab", "cd"], "abc", (["ab"], "c")),  # cd holds others than the requested ones
        (["abc", "ab", "cd"], "abcd", (["ab", "cd"], "")),  # the largest is not always the best
        (["abc", "a", "b", "c"], "abc", (["abc"], "")),
        (["ab", "bc", "cd", "a"], "abcd", (["ab", "cd"], "")),
        (["ab", "bc"], "abc", (["ab"], "c")),
        ([], "ab", ([], "ab")),
    ],
)
def test_each_source_is_held_once(
    shelf: Shelf, objects: list[str], wanted: str, expected: tuple[list[str], str]
) -> None:
    for letters in objects:
        shelf.put(letters)
    found, missing = shelf.found(wanted)
    assert (found, missing) == expected
    assert sorted("".join(found) + missing) == sorted(wanted)


@pytest.mark.parametrize("kept", ["ab", "abc", "ab ab", "ab bc", "a", ""])
def test_a_choice_that_was_kept_is_taken_if_it_holds_each_source_once(shelf: Shelf, kept: str) -> None:
    """A note may be of another cache, or have been changed: it lists linked objects, and promises nothing."""
    for letters in ("ab", "abc", "bc", "a", "b"):
        shelf.put(letters)
    path = shelf.folder / "cache" / "choices" / f"{digest(['a', 'b'])}.json"
    keys = {letters: key for key, letters in shelf.keys().items()}
    path.parent.mkdir()
    path.write_text(json.dumps([keys[letters] for letters in kept.split()]))
    assert shelf.found("ab") == (["ab"], "")
    path.write_text(json.dumps([keys["a"], keys["b"]]))
    assert shelf.found("ab") == (["a", "b"], ""), "one that does is taken"


def test_an_object_in_anothers_place_is_not_found(shelf: Shelf) -> None:
    for letters in ("ab", "cd"):
        shelf.put(letters)
    first, second = (shelf.folder / "cache" / "objects" / key for key in sorted(shelf.keys(), key=shelf.keys().get))
    shutil.rmtree(second)
    shutil.copytree(first, second)
    assert shelf.found("abcd") == (["ab"], "cd")
    shutil.rmtree(first)
    assert shelf.found("ab") == ([], "ab")


def test_many_overlaps_end(shelf: Shelf) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    for i in range(len(letters)):
        for length in (2, 3):
            if i + length <= len(letters):
                shelf.put(letters[i : i + length])
    found, missing = shelf.found(letters)
    assert sorted("".join(found) + missing) == list(letters) and len(missing) <= 2


def test_changed_header(shelf: Shelf) -> None:
    shelf.put("ab")
    shelf.header.write_text("22")
    assert shelf.found("ab") == ([], "ab")
    shelf.put("ab")
    assert shelf.found("ab") == (["ab"], "")
    shelf.header.write_text("1")
    assert shelf.found("ab") == (["ab"], "")


def test_header_list_that_was_changed_is_not_trusted(shelf: Shelf) -> None:
    shelf.put("ab")
    path = next(shelf.folder.glob("cache/headers/*.json"))
    path.write_text(json.dumps([]))
    assert shelf.found("ab") == ([], "ab")
    shelf.put("ab")
    assert shelf.found("ab") == (["ab"], ""), "compiling again has repaired it"


def _names(selection: Selection) -> set[str]:
    return {to_name(config) for config in selection.configs}


@pytest.fixture
def filled(toolkit: FakeToolkit, options: BuildOptions, make_selection: Callable[..., Selection]) -> Path:
    """A home with builds of two selections: objects of two variants, of the binding and of two variant tables."""
    build(make_selection(64), options)
    build(make_selection(64, 128), options)
    return options.home_dir


def test_list(filled: Path, make_selection: Callable[..., Selection]) -> None:
    rows = cache_list(filled)
    assert {name for row in rows for name in row.names} == _names(make_selection(64, 128)) | {
        "extension/binding.cpp",
        "variants.cpp",
    }
    assert len(rows) == 5 and all(row.object_bytes > 0 and row.cpu_seconds > 0 for row in rows)
    assert [row.used for row in rows] == sorted((row.used for row in rows), reverse=True)
    assert cache_list(filled / "nothing") == ()


def test_verify_removes_what_is_damaged(filled: Path) -> None:
    assert (cache_verify(filled).kept, cache_verify(filled).removed) == (5, ())
    damaged = sorted(filled.glob("cache/objects/*/object.o"))[0]
    status = damaged.stat()
    damaged.write_bytes(b"x" * status.st_size)
    os.utime(damaged, ns=(status.st_atime_ns, status.st_mtime_ns))  # only reading it tells
    report = cache_verify(filled)
    assert report.kept == 4 and report.removed == (damaged.parent.name,) and report.freed_bytes > status.st_size
    assert not damaged.parent.exists() and not list(filled.glob(f"cache/index/*/{damaged.parent.name}"))


def test_verify_removes_damaged_lists_of_headers(filled: Path) -> None:
    (path,) = {row for row in filled.glob("cache/headers/*.json") if "cutlass" in row.read_text()}
    path.write_text("[" * 100_000)
    assert cache_verify(filled).removed and not path.exists()


@pytest.mark.parametrize("damage", ["headers", "memo", "entry"])
def test_a_build_repairs_what_it_finds_damaged(
    filled: Path, options: BuildOptions, make_selection: Callable[..., Selection], damage: str
) -> None:
    first = build(make_selection(64, 128), options)
    where = {"headers": "cache/headers/*.json", "memo": "memo/files.json", "entry": "cache/objects/*/entry.json"}
    for path in filled.glob(where[damage]):
        if damage == "memo":  # as one flipped bit does it
            text = path.read_text()
            assert first.manifest.toolchain.nvcc in text
            path.write_text(text.replace(first.manifest.toolchain.nvcc, "13,0.88"))
        else:
            path.write_text(path.read_text().replace("a", "b"))
    assert len(build(make_selection(64, 128), options).manifest.entries) == 2
    assert plan(make_selection(64, 128), options).units == ()


def test_gc_by_age(filled: Path, options: BuildOptions, make_selection: Callable[..., Selection]) -> None:
    for path in filled.glob("cache/objects/*/entry.json"):
        os.utime(path, (time.time() - 40 * 24 * 3600,) * 2)
    build(make_selection(64), options)  # uses two of them
    report = cache_gc(filled, max_age_days=30)
    assert report.kept == 2 and len(report.removed) == 3
    assert {name for row in cache_list(filled) for name in row.names} == _names(make_selection(64)) | {
        "extension/binding.cpp"
    }
    assert len(list(filled.glob("builds/*/*.so"))) == 2


def test_gc_by_size_keeps_the_latest(filled: Path) -> None:
    rows = cache_list(filled)
    for age, row in enumerate(rows):
        os.utime(filled / "cache" / "objects" / row.key / "entry.json", (time.time() - age, time.time() - age))
    report = cache_gc(filled, max_age_days=None, max_bytes=rows[0].object_bytes + rows[1].object_bytes)
    assert {row.key for row in cache_list(filled)} == {rows[0].key, rows[1].key}
    assert set(report.removed) == {row.key for row in rows[2:]}
    assert cache_gc(filled, max_age_days=None, max_bytes=rows[0].object_bytes + rows[1].object_bytes - 1).kept == 1
    assert cache_gc(filled, max_age_days=None, max_bytes=0).kept == 0
