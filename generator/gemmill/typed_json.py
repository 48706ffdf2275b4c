"""JSON that gemmill's tools wrote, read as a type with its fields: by msgspec, which names the wrong field.

The runtime does without: `manifest` and `runtime.table_file` check their input with the standard library.
"""

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

Kind = TypeVar("Kind")
_PLACE = re.compile(r" - at `(key in )?\$\.?(.*)`$")


class JsonError(ValueError):
    """Unexpected JSON; the text is one sentence, with the field, its contents and the remedy."""


class MalformedError(JsonError):
    """No JSON at all, or JSON that ends too early."""


def from_json(data: bytes, kind: type[Kind], where: str, advice: str) -> Kind:
    """`data` as a `kind`: a dataclass, msgspec's Struct, or anything else that msgspec knows.

    `where` names the file and line, `advice` the remedy for a wrong one. Raises JsonError.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise JsonError(_sentence(error, where, advice)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"{where} is not JSON ({_lowered(str(error))}): {advice}") from None


def as_kind(value: Any, kind: type[Kind], where: str, advice: str) -> Kind:
    """The same for a decoded value. Raises JsonError."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise JsonError(_sentence(error, where, advice)) from None


def read_json(path: Path, kind: type[Kind], advice: str) -> Kind:
    """A file of JSON as a `kind`. Raises JsonError, also where the file cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise JsonError(f"{path} cannot be read ({error.strerror}): {advice}") from None
    return from_json(data, kind, str(path), advice)


def _sentence(error: Exception, where: str, advice: str) -> str:
    """msgspec's text has the field last, as a path from `$`."""
    text = str(error)
    if (place := _PLACE.search(text)) is None or not place[2]:
        return f"{where}: {_lowered(_PLACE.sub('', text))}; {advice}"
    key = "a key of " if place[1] else ""
    return f"{where}, {key}{place[2]}: {_lowered(text[: place.start()])}; {advice}"


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]
