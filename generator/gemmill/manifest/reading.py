"""JSON to Manifest, every field checked against the dataclasses' annotations."""

import dataclasses
import enum
import hashlib
import json
import types
import typing
from pathlib import Path
from typing import Any

from gemmill.manifest.errors import ManifestError
from gemmill.manifest.schema import SCHEMA_VERSION, KernelEntry, Manifest
from gemmill.registry import REGISTRY


def read_manifest(path: Path) -> Manifest:
    """Read and validate. Raises ManifestError; never returns a manifest that is partly right."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ManifestError(f"no manifest at {path}: run `gemmill build`, or name a build with GEMMILL_BUILD") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ManifestError(
            f"{path} is not a readable manifest ({error}): delete its folder and run `gemmill build`"
        ) from None
    if not isinstance(data, dict) or "schema_version" not in data:
        raise ManifestError(
            f"{path} is not a manifest: it has no schema_version; delete its folder and run `gemmill build`"
        )
    if data["schema_version"] != SCHEMA_VERSION:
        raise ManifestError(
            f"{path} has schema version {data['schema_version']!r}, this gemmill reads {SCHEMA_VERSION}: build again with `gemmill build`"
        )
    try:
        manifest: Manifest = _convert(data, Manifest, "manifest")
    except ValueError as error:
        raise ManifestError(
            f"{path} is not a valid manifest: {error}; delete its folder and run `gemmill build`"
        ) from None
    return manifest


def check_extension(manifest: Manifest, folder: Path) -> Path:
    """The path of the manifest's extension, its SHA-256 checked. Raises ManifestError."""
    path = folder / manifest.extension
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ManifestError(f"the extension {path} cannot be read ({error.strerror}): run `gemmill build`") from None
    if found != manifest.extension_sha256:
        raise ManifestError(
            f"the extension {path} is not the one in its manifest: SHA-256 {found[:12]}, expected "
            f"{manifest.extension_sha256[:12]}; it was changed or cut short, run `gemmill build`"
        )
    return path


def _convert(value: Any, kind: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _convert_dataclass(value, kind, where)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"{where} is {value!r}, expected one of {', '.join(m.value for m in kind)}") from None
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _convert(value, typing.get_args(kind)[0], where)
    if origin is tuple:
        return _convert_tuple(value, typing.get_args(kind), where)
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where} is {type(value).__name__}, expected an object")
        return {str(k): _convert(v, typing.get_args(kind)[1], f"{where}.{k}") for k, v in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{where} is {type(value).__name__} {value!r}, expected {kind.__name__}")
    return value


def _convert_dataclass(value: Any, kind: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {type(value).__name__}, expected an object")
    hints = typing.get_type_hints(kind)
    if kind is KernelEntry and "family" in value:
        hints |= _types_of(value, where)
    required = {f.name for f in dataclasses.fields(kind)}
    if missing := required - value.keys():
        raise ValueError(f"{where} lacks {', '.join(sorted(missing))}")
    if unknown := value.keys() - required:
        raise ValueError(f"{where} has unknown fields {', '.join(sorted(unknown))}")
    return kind(**{name: _convert(value[name], hints[name], f"{where}.{name}") for name in sorted(required)})


def _types_of(entry: dict[str, Any], where: str) -> dict[str, Any]:
    """Types of an entry's fields that depend on its family and, where its kernels differ, on the tag in its name."""
    try:
        family = REGISTRY.named(entry["family"])
    except ValueError as error:
        raise ValueError(f"{where}.{error}") from None
    tag = [*str(entry.get("name")).split("_"), ""][1]
    kernels = next((kernels for kernels in family.kernels if kernels.tag == tag), family.kernels[0])
    return {"config": kernels.config, "predicate": kernels.accepts}


def _convert_tuple(value: Any, kinds: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is {type(value).__name__}, expected a list")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_convert(item, kinds[0], f"{where}[{i}]") for i, item in enumerate(value))
    if len(value) != len(kinds):
        raise ValueError(f"{where} has {len(value)} items, expected {len(kinds)}")
    return tuple(_convert(item, k, f"{where}[{i}]") for i, (item, k) in enumerate(zip(value, kinds, strict=True)))
