"""JSON to Manifest, every field checked against the dataclasses' annotations."""

import dataclasses
import enum
import functools
import hashlib
import json
import os
import re
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from gemmill.manifest.schema import (
    DIGEST,
    SCHEMA_VERSION,
    KernelEntry,
    Manifest,
    ManifestError,
    OtherVersionError,
    own_digest,
)
from gemmill.ownership import distrust
from gemmill.registry import REGISTRY
from gemmill.version import __version__
from gemmill.vocab import Arch

_FORMS = (
    ("build_id", r"\w+", "letters and digits"),
    ("extension", r"\w[\w.-]*", "the name of a file beside the manifest"),
    ("torch_target", r"\d{1,4}\.\d{1,4}", "two numbers, as 2.11"),
)


_read: dict[tuple[str, int, int, int], Manifest] = {}
"""The manifest read last, by its path and the file's inode, size and time."""


def read_manifest(path: Path) -> Manifest:
    """Read and validate, once for an unchanged file. Raises ManifestError; never returns a manifest that is partly right."""
    try:
        with path.open(encoding="utf-8") as file:
            _check_writers(path.parent, path.parent.stat())
            _check_writers(path, status := os.fstat(file.fileno()))
            version = str(path), status.st_ino, status.st_size, status.st_mtime_ns
            if (known := _read.get(version)) is not None:
                return known
            data = json.loads(file.read())
    except FileNotFoundError:
        raise ManifestError(f"no manifest at {path}: run `gemmill build`, or name a build with GEMMILL_BUILD") from None
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no text, no JSON, a number of too many digits
        raise ManifestError(
            f"{path} is not a readable manifest ({error}): delete its folder and run `gemmill build`"
        ) from None
    if not isinstance(data, dict) or "schema_version" not in data:
        raise ManifestError(
            f"{path} is not a manifest: it has no schema_version; delete its folder and run `gemmill build`"
        )
    if data["schema_version"] != SCHEMA_VERSION:
        raise OtherVersionError(
            f"{path} has schema version {data['schema_version']!r}, this gemmill reads {SCHEMA_VERSION}: build again with `gemmill build`",
            data,
        )
    try:
        manifest = _manifest_of(data, path)
    except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as error:
        # The dataclasses check their fields, but not against values that nobody would write.
        raise ManifestError(
            f"{path} is not a valid manifest: {_one_line(error)}; delete its folder and run `gemmill build`"
        ) from None
    _read.clear()
    _read[version] = manifest
    return manifest


def _manifest_of(data: dict[str, Any], path: Path) -> Manifest:
    fields = {name: value for name, value in data.items() if name != DIGEST}
    try:
        manifest: Manifest = _reader(Manifest)(fields, (None, "manifest"))
    except ValueError as error:
        if data.get(DIGEST) != own_digest(fields):
            raise
        raise OtherVersionError(
            f"{path} was written by another gemmill, {data.get('gemmill_version')} where this is {__version__} "
            f"({_one_line(error)}): `gemmill builds rm {path.parent.name}` removes it, `gemmill build` makes one that fits",
            data,
        ) from None
    _check_texts(manifest)
    for entry in manifest.entries:
        if entry.epilogue:
            _learn(entry)
    # Last: a fault of a field says more. A flipped bit often leaves a value that means something else.
    if data.get(DIGEST) != own_digest(fields):
        raise ValueError("it was changed since it was written, by its digest")
    return manifest


def _learn(entry: KernelEntry) -> None:
    """Make a user's epilogue known: the config has no more of it than a key. Raises ValueError."""
    epilogues = REGISTRY.named(entry.family).epilogues
    if epilogues is None:
        raise ValueError(f"entry {entry.name!r} has an epilogue, and kernels of {entry.family} end in none of a user's")
    epilogues.learn(entry.epilogue)


def _check_texts(manifest: Manifest) -> None:
    """Refuse texts that readers would take for a GPU, a namespace, a path or a version and that are none."""
    if manifest.arch not in set(Arch):
        raise ValueError(f"manifest.arch is {manifest.arch!r}, expected one of {', '.join(Arch)}")
    for name, form, wanted in _FORMS:
        if re.fullmatch(form, value := getattr(manifest, name), re.ASCII) is None:
            raise ValueError(f"manifest.{name} is {value!r}, expected {wanted}")


def _one_line(error: Exception) -> str:
    text = str(error).encode("ascii", "backslashreplace").decode()
    return " ".join(text.split()) or type(error).__name__


def check_extension(manifest: Manifest, folder: Path) -> Path:
    """The path of the manifest's extension, its SHA-256 checked. Raises ManifestError."""
    open_extension(manifest, folder).close()
    return folder / manifest.extension


def open_extension(manifest: Manifest, folder: Path) -> BinaryIO:
    """The manifest's extension as a file, its SHA-256 checked: a caller that loads it by its descriptor loads the
    checked bytes. Raises ManifestError.
    """
    path = folder / manifest.extension
    try:
        file = path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from None
    try:
        _check_writers(path, os.fstat(file.fileno()))
        found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != manifest.extension_sha256:
            raise ManifestError(
                f"the extension {path} is not the one in its manifest: SHA-256 {found[:12]}, expected "
                f"{manifest.extension_sha256[:12]}; it was changed or cut short, run `gemmill build`"
            )
    except OSError as error:
        file.close()
        raise _unreadable(path, error) from None
    except ManifestError:
        file.close()
        raise
    return file


def _unreadable(path: Path, error: OSError) -> ManifestError:
    return ManifestError(f"the extension {path} cannot be read ({error.strerror}): run `gemmill build`")


def _check_writers(path: Path, status: os.stat_result) -> None:
    if reason := distrust(path, status):
        raise ManifestError(reason)


Place = tuple[Any, str]
"""Where a value is: the place of the value that it is in, or None, and how it is reached from there."""
Reader = Callable[[Any, Place], Any]
"""Makes a value of some type of JSON's. Raises ValueError, which names the place."""


def _told(place: Place | None) -> str:
    return "" if place is None else _told(place[0]) + place[1]


@functools.cache
def _reader(kind: Any) -> Reader:
    """Of a type. Made once: a manifest has thousands of values of one."""
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return functools.partial(_read_dataclass, kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return functools.partial(_read_enum, kind)
    if origin in (typing.Union, types.UnionType):
        some = _reader(of[0])
        return lambda value, place: None if value is None else some(value, place)
    if origin is tuple:
        return functools.partial(_read_tuple, of)
    if origin is dict:
        return functools.partial(_read_dict, _reader(of[1]))
    return functools.partial(_read_plain, kind)


def _read_plain(kind: Any, value: Any, place: Place) -> Any:
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    raise ValueError(f"{_told(place)} is {type(value).__name__} {value!r}, expected {kind.__name__}")


def _read_enum(kind: Any, value: Any, place: Place) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{_told(place)} is {value!r}, expected one of {', '.join(m.value for m in kind)}") from None


def _read_dict(read: Reader, value: Any, place: Place) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{_told(place)} is {type(value).__name__}, expected an object")
    return {str(k): read(v, (place, f".{k}")) for k, v in value.items()}


def _read_dataclass(kind: Any, value: Any, place: Place) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{_told(place)} is {type(value).__name__}, expected an object")
    readers = _readers_of(kind)
    required = readers.keys()
    if kind is KernelEntry and "family" in value:
        readers = readers | {"config": _reader(_config_of(value, place))}
    if missing := required - value.keys():
        raise ValueError(f"{_told(place)} lacks {', '.join(sorted(missing))}")
    if unknown := value.keys() - required:
        raise ValueError(f"{_told(place)} has unknown fields {', '.join(sorted(unknown))}")
    return kind(**{name: read(value[name], (place, f".{name}")) for name, read in readers.items()})


@functools.cache
def _readers_of(kind: Any) -> dict[str, Reader]:
    """Of a dataclass's fields, by sorted names. That of an entry's config depends on the entry."""
    hints = typing.get_type_hints(kind)
    return {name: _reader(hints[name]) for name in sorted(f.name for f in dataclasses.fields(kind))}


def _config_of(entry: dict[str, Any], place: Place) -> Any:
    """The type of an entry's config, which depends on its family and, where its kernels differ, on the tag in its name."""
    try:
        family = REGISTRY.named(entry["family"])
    except ValueError as error:
        raise ValueError(f"{_told(place)}.{error}") from None
    tag = [*str(entry.get("name")).split("_"), ""][1]
    kernels = next((kernels for kernels in family.kernels if kernels.tag == tag), family.kernels[0])
    return kernels.config


def _read_tuple(kinds: tuple[Any, ...], value: Any, place: Place) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{_told(place)} is {type(value).__name__}, expected a list")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        read = _reader(kinds[0])
        return tuple(read(item, (place, f"[{i}]")) for i, item in enumerate(value))
    if len(value) != len(kinds):
        raise ValueError(f"{_told(place)} has {len(value)} items, expected {len(kinds)}")
    return tuple(_reader(k)(item, (place, f"[{i}]")) for i, (item, k) in enumerate(zip(value, kinds, strict=True)))
