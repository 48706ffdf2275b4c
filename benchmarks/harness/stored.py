"""Results as they lie on the disk, with the fields of their readers checked: pictures, tables of pages, lines of a run that goes on."""

import lzma
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from gemmill.typed_json import JsonError, as_kind, from_json, read_json

ADVICE = "name a result that benchmarks/run.py wrote"
Positive = Annotated[float, Meta(gt=0)]


class Environment(Struct):
    """The machine."""

    gpu: str | None
    torch: str


class Taken(Struct):
    """A contender's time at a shape."""

    median_us: Positive


class Row(Struct):
    """A shape; its sizes are further fields, by name."""

    ratio: Positive | None = None
    best_peer: str | None = None
    contenders: dict[str, Taken] = {}
    sizes: list[str] = []


class Comparison(Struct):
    """The fields of a result that pictures and tables read."""

    date: str
    environment: Environment
    commit: str | None
    rows: list[Row]


def read_result(path: Path) -> dict[str, Any]:
    """All fields of a result, packed by xz or not. Where it has rows, those of a Comparison are checked. Raises JsonError."""
    told = _packed(path) if path.suffix == ".xz" else read_json(path, dict[str, Any], ADVICE)
    if "rows" in told:
        as_kind(told, Comparison, str(path), ADVICE)
    return told


def _packed(path: Path) -> dict[str, Any]:
    try:
        data = lzma.decompress(path.read_bytes())
    except (OSError, lzma.LZMAError) as error:
        raise JsonError(f"{path} cannot be read ({error}): {ADVICE}") from None
    return from_json(data, dict[str, Any], str(path), ADVICE)
