"""A manifest comes back as it was written, or is refused with one sentence; never a part of one."""

import contextlib
import copy
import dataclasses
import errno
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from gemmill.families.scaled_mm.config import Design, KernelConfig, Launch, Operands
from gemmill.manifest import (
    SCHEMA_VERSION,
    KernelEntry,
    Manifest,
    ManifestError,
    RejectedEntry,
    Toolchain,
    read_manifest,
    reading,
    write_manifest,
)
from gemmill.manifest.reading import check_extension
from gemmill.manifest.schema import own_digest
from gemmill.manifest.writing import manifest_text
from gemmill.space.selections import select
from gemmill.vocab import Arch

AGAIN = "; delete its folder and run `gemmill build`"

# Where each dataclass lies in the JSON.
PLACES: dict[type, list] = {
    Manifest: [],
    Toolchain: ["toolchain"],
    RejectedEntry: ["rejected", 0],
    KernelEntry: ["entries", 0],
    KernelConfig: ["entries", 0, "config"],
    Operands: ["entries", 0, "config", "operands"],
    Design: ["entries", 0, "config", "design"],
    Launch: ["entries", 0, "config", "launch"],
}
FIELDS = [(kind, field.name) for kind in PLACES for field in dataclasses.fields(kind)]


def place(data: Any, path: list) -> Any:
    for step in path:
        data = data[step]
    return data


def label(path: list) -> str:
    return "manifest" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


@pytest.fixture
def written(make_manifest, tmp_path) -> tuple[dict, Path]:
    """The JSON of a good manifest, and where a changed one is to be written."""
    path = tmp_path / "manifest.json"
    return json.loads(manifest_text(make_manifest())), path


def signed(data: dict) -> dict:
    """The same with the digest that belongs to it, as one has who means to deceive."""
    return data | {"digest": own_digest(data)}


def refusal(data: Any, path: Path) -> str:
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    with pytest.raises(ManifestError) as caught:
        read_manifest(path)
    text = str(caught.value)
    assert text.startswith(str(path)) and "\n" not in text and "gemmill build" in text
    return text.removeprefix(str(path))


def test_round_trip_of_every_selected_config(make_manifest, tmp_path) -> None:
    manifest = make_manifest(*select("smoke").configs, *select("sweep").configs[:40])
    path = tmp_path / "manifest.json"
    write_manifest(manifest, path)
    assert read_manifest(path) == manifest


def test_an_unchanged_file_is_read_once(make_manifest, tmp_path, monkeypatch) -> None:
    path, read = tmp_path / "manifest.json", []
    of_data = reading._manifest_of
    monkeypatch.setattr(reading, "_manifest_of", lambda *given: read.append(given) or of_data(*given))
    first, other = make_manifest(), make_manifest(build_id="another")
    write_manifest(first, path)
    assert read_manifest(path) is read_manifest(path) and len(read) == 1
    write_manifest(other, path)
    assert read_manifest(path) == other != first and len(read) == 2
    path.chmod(0o666)
    with pytest.raises(ManifestError, match="can be written by every user"):
        read_manifest(path)


def test_empty_builds_round_trip(make_manifest, tmp_path) -> None:
    manifest = make_manifest(entries=(), rejected=())
    write_manifest(manifest, tmp_path / "m.json")
    assert read_manifest(tmp_path / "m.json") == manifest


def test_same_manifest_same_bytes(make_manifest) -> None:
    assert manifest_text(make_manifest()) == manifest_text(make_manifest())
    reordered = dataclasses.replace(make_manifest().entries[0], sass={"UTMALDG": 2, "QGMMA": 32})
    assert manifest_text(make_manifest(entries=(reordered,))) == manifest_text(make_manifest())


def test_writing_replaces_and_leaves_nothing_else(make_manifest, tmp_path) -> None:
    path = tmp_path / "manifest.json"
    write_manifest(make_manifest(), path)
    write_manifest(make_manifest(selection="sweep"), path)
    assert read_manifest(path).selection == "sweep"
    assert os.listdir(tmp_path) == ["manifest.json"]


def test_a_full_disk_leaves_the_old_one(make_manifest, tmp_path, monkeypatch) -> None:
    path = tmp_path / "manifest.json"
    write_manifest(make_manifest(), path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_manifest(make_manifest(selection="sweep"), path)
    assert read_manifest(path) == make_manifest()
    assert os.listdir(tmp_path) == ["manifest.json"]


def test_no_manifest(tmp_path) -> None:
    path = tmp_path / "manifest.json"
    with pytest.raises(ManifestError) as caught:
        read_manifest(path)
    assert str(caught.value) == f"no manifest at {path}: run `gemmill build`, or name a build with GEMMILL_BUILD"


def test_a_folder_in_its_place(tmp_path) -> None:
    with pytest.raises(ManifestError, match=r"is not a readable manifest \(.*Is a directory.*\): delete its folder"):
        read_manifest(tmp_path)


def test_a_changed_value_is_noticed(written) -> None:
    data, path = written
    data["entries"][0]["registers"] += 1
    changed = " is not a valid manifest: it was changed since it was written, by its digest"
    assert refusal(data, path) == changed + AGAIN
    path.write_text(json.dumps(signed(data)))
    assert read_manifest(path).entries[0].registers == 169
    good = own_digest(data)
    for digest in (None, 5, "", [data], good[:12], good[:-1] + ("0" if good[-1] != "0" else "1")):
        assert refusal(data | {"digest": digest}, path) == changed + AGAIN
    del data["digest"]
    assert refusal(data, path) == changed + AGAIN


def test_no_flipped_bit_goes_unnoticed(written, make_manifest) -> None:
    _, path = written
    text = manifest_text(make_manifest()).encode()
    for at in range(len(text)):
        flipped = bytearray(text)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        with contextlib.suppress(ManifestError):
            assert read_manifest(path) == make_manifest()  # blanks have other blanks


HOSTILE = [
    *("", "\0", "../up", "/etc/passwd", "..", ".", "a/b", "\ud800", "\n\n", "x" * 100_000, "sm90a", "9" * 5000),
    *(-1, 0, 1, 2**31, 2**63, 2**64, -(2**70), 10**400, 0.5, 1e400, float("nan"), True, None, [], {}, [[]], {"": {}}),
    *([0, 0, 0], [-1, -1, -1], [2**70] * 3, "cutlass", "quant", "scaled_mm"),
]


def leaves(data: Any, path: tuple = ()) -> list[tuple]:
    """The way to each value."""
    steps = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path] * bool(path) + [leaf for step, value in steps for leaf in leaves(value, (*path, step))]


def test_hostile_values_are_refused_as_any_other(written, monkeypatch) -> None:
    """Whatever stands there: a manifest or a ManifestError, whose text is one line that can be printed."""
    data, path = written
    for where in leaves(data):
        for value in HOSTILE:
            changed = copy.deepcopy(data)
            place(changed, list(where[:-1]))[where[-1]] = value
            with contextlib.suppress(UnicodeEncodeError):
                changed = signed(changed)
            path.write_text(json.dumps(changed))
            try:
                manifest = read_manifest(path)
            except ManifestError as error:
                assert "\n" not in str(error) and str(error).encode()
            else:
                assert (path.parent / manifest.extension).parent == path.parent and Arch(manifest.arch)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"schema_version": ' + "9" * 10_000 + "}", '{"a":' * 5_000])
def test_json_that_python_does_not_take(written, text: str) -> None:
    assert refusal(text, written[1]).startswith(" is not a readable manifest (")


@pytest.mark.parametrize(
    "name", ["../other.so", "/lib/libc.so", "..", ".hidden.so", "a/b.so", "", "a\0.so", "-x", "a.so\n"]
)
def test_an_extension_lies_beside_its_manifest(written, name: str) -> None:
    data, path = written
    sentence = (
        f" is not a valid manifest: manifest.extension is {name!r}, expected the name of a file beside the manifest"
    )
    assert refusal(signed(data | {"extension": name}), path) == sentence + AGAIN


@pytest.mark.parametrize("percent", [0, 1, 50, 99, 99.9])
def test_truncated(written, percent) -> None:
    data, path = written
    text = json.dumps(data)
    cut = text[: int(len(text) * percent / 100)]
    assert re.match(r" is not a readable manifest \(.+ \(char \d+\)\): delete its folder", refusal(cut, path))


def test_bytes_that_are_not_text(written) -> None:
    _, path = written
    path.write_bytes(b"\x7fELF\xff\xfe")
    with pytest.raises(
        ManifestError, match=r"is not a readable manifest .*utf-8.*: delete its folder and run `gemmill build`"
    ):
        read_manifest(path)


@pytest.mark.parametrize("data", [[], "text", None, 3, {}, {"entries": []}])
def test_other_json(written, data) -> None:
    assert refusal(json.dumps(data), written[1]) == " is not a manifest: it has no schema_version" + AGAIN


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, "1", None])
def test_another_schema_version(written, version) -> None:
    data, path = written
    text = refusal(data | {"schema_version": version}, path)
    assert (
        text
        == f" has schema version {version!r}, this gemmill reads {SCHEMA_VERSION}: build again with `gemmill build`"
    )


def test_another_schema_version_is_told_before_anything_else(written) -> None:
    assert "has schema version 99" in refusal({"schema_version": 99, "unheard_of": 1}, written[1])


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_a_lost_field(written, kind: type, field: str) -> None:
    data, path = written
    del place(data, PLACES[kind])[field]
    text = refusal(data, path)
    if (kind, field) == (Manifest, "schema_version"):
        assert text == " is not a manifest: it has no schema_version" + AGAIN
    else:
        assert text == f" is not a valid manifest: {label(PLACES[kind])} lacks {field}" + AGAIN


@pytest.mark.parametrize("kind", PLACES)
def test_an_unknown_field(written, kind: type) -> None:
    data, path = written
    place(data, PLACES[kind])["colour"] = "red"
    assert refusal(data, path) == f" is not a valid manifest: {label(PLACES[kind])} has unknown fields colour" + AGAIN


@pytest.mark.parametrize(("kind", "field"), [f for f in FIELDS if f != (Manifest, "schema_version")])
@pytest.mark.parametrize("value", [3.5, True, ["x", 1]], ids=repr)
def test_a_value_of_another_type(written, kind: type, field: str, value: Any) -> None:
    data, path = written
    parent = place(data, PLACES[kind])
    parent[field] = {"other": 1} if type(parent[field]) is type(value) else value
    assert refusal(data, path).startswith(f" is not a valid manifest: {label([*PLACES[kind], field])}")


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (["arch"], 90, "manifest.arch is int 90, expected str"),
        (["arch"], "sm70", "manifest.arch is 'sm70', expected one of sm90a, sm100a, sm120f"),
        (["build_id"], "../0", "manifest.build_id is '../0', expected letters and digits"),
        (["torch_target"], "new", "manifest.torch_target is 'new', expected two numbers, as 2.11"),
        (["extension_bytes"], "big", "manifest.extension_bytes is str 'big', expected int"),
        (["extension_bytes"], True, "manifest.extension_bytes is bool True, expected int"),
        (["entries"], {}, "manifest.entries is dict, expected a list"),
        (["entries", 0], [], "manifest.entries[0] is list, expected an object"),
        (["entries", 0, "sass"], [], "manifest.entries[0].sass is list, expected an object"),
        (["entries", 0, "sass", "QGMMA"], 0.5, "manifest.entries[0].sass.QGMMA is float 0.5, expected int"),
        (
            ["entries", 0, "config", "design", "stages"],
            "3",
            "manifest.entries[0].config.design.stages is str '3', expected int",
        ),
        (
            ["entries", 0, "config", "design", "tile_shape_mnk"],
            [128, 128],
            "manifest.entries[0].config.design.tile_shape_mnk has 2 items, expected 3",
        ),
        (
            ["entries", 0, "config", "arch"],
            "sm70",
            "manifest.entries[0].config.arch is 'sm70', expected one of sm90a, sm100a, sm120f",
        ),
        (
            ["entries", 0, "config", "operands", "group_size"],
            128,
            "group_size=128 contradicts a_scale=channel b_scale=channel: a group size is given exactly when a scale is grouped",
        ),
    ],
)
def test_sentences(written, path: list, value: Any, sentence: str) -> None:
    data, file = written
    place(data, path[:-1])[path[-1]] = value
    assert refusal(data, file) == f" is not a valid manifest: {sentence}" + AGAIN


def test_whole_seconds_are_seconds(written) -> None:
    data, path = written
    data["entries"][0]["compile_seconds"] = 16
    path.write_text(json.dumps(signed(data)))
    assert read_manifest(path).entries[0].compile_seconds == 16.0


@pytest.fixture
def extension(tmp_path, make_manifest) -> Manifest:
    (tmp_path / "gemmill_0.so").write_bytes(b"machine code")
    return make_manifest(extension="gemmill_0.so", extension_sha256=hashlib.sha256(b"machine code").hexdigest())


def test_the_extension_is_the_one_in_the_manifest(extension, tmp_path) -> None:
    assert check_extension(extension, tmp_path) == tmp_path / "gemmill_0.so"


@pytest.mark.parametrize("content", [b"", b"machine cod", b"machine code!", b"Machine code"])
def test_another_extension_is_refused(extension, tmp_path, content: bytes) -> None:
    (tmp_path / "gemmill_0.so").write_bytes(content)
    with pytest.raises(ManifestError) as caught:
        check_extension(extension, tmp_path)
    assert re.fullmatch(
        re.escape(f"the extension {tmp_path / 'gemmill_0.so'} is not the one in its manifest: SHA-256 ")
        + r"[0-9a-f]{12}, expected "
        + extension.extension_sha256[:12]
        + "; it was changed or cut short, run `gemmill build`",
        str(caught.value),
    )


def test_all_digits_of_an_extension_count(extension, tmp_path) -> None:
    found = extension.extension_sha256
    for other in (found[:12], found[:-1], found[:-1] + ("0" if found[-1] != "0" else "1"), ""):
        with pytest.raises(ManifestError, match="is not the one in its manifest"):
            check_extension(dataclasses.replace(extension, extension_sha256=other), tmp_path)


def test_a_missing_extension(extension, tmp_path) -> None:
    (tmp_path / "gemmill_0.so").unlink()
    with pytest.raises(ManifestError) as caught:
        check_extension(extension, tmp_path)
    path = tmp_path / "gemmill_0.so"
    assert str(caught.value) == f"the extension {path} cannot be read (No such file or directory): run `gemmill build`"
