"""JSON of tools: right text becomes a value of its type, wrong text a sentence."""

from dataclasses import dataclass

import pytest

from gemmill.typed_json import JsonError, MalformedError, as_kind, from_json, read_json


@dataclass(frozen=True, kw_only=True)
class Point:
    at: dict[str, tuple[int, ...]]
    name: str = ""


def test_what_is_right() -> None:
    assert from_json(b'{"at": {"x": [1, 2]}, "more": 1}', Point, "a", "b") == Point(at={"x": (1, 2)})
    assert as_kind({"at": {}, "name": "n"}, Point, "a", "b") == Point(at={}, name="n")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"at": {"x": [1, "2"]}}', "file, at[...][1]: expected `int`, got `str`; mend it"),
        ('{"at": {}, "name": null}', "file, name: expected `str`, got `null`; mend it"),
        ('{"name": "n"}', "file: object missing required field `at`; mend it"),
        ("[]", "file: expected `object`, got `array`; mend it"),
    ],
)
def test_a_wrong_field_is_named(text: str, sentence: str) -> None:
    with pytest.raises(JsonError) as caught:
        from_json(text.encode(), Point, "file", "mend it")
    assert str(caught.value) == sentence and not isinstance(caught.value, MalformedError)


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"at": {}} x', b'{"at": {}, "name": "\xff"}', b"NaN", b'{"more": ' + b"[" * 100_000]
)
def test_what_is_no_json_is_told_apart(data: bytes) -> None:
    with pytest.raises(MalformedError, match=r"^file is not JSON \(.+\): mend it$"):
        from_json(data, Point, "file", "mend it")


def test_a_line_that_was_cut_is_never_a_wrong_field() -> None:
    whole = b'{"at": {"x": [10, 20], "y": []}, "name": "of it"}'
    for end in range(len(whole)):
        with pytest.raises(MalformedError):
            from_json(whole[:end], Point, "file", "mend it")


def test_a_file_that_cannot_be_read(tmp_path) -> None:
    with pytest.raises(JsonError, match=r"x\.json cannot be read \(No such file or directory\): mend it$"):
        read_json(tmp_path / "x.json", Point, "mend it")
