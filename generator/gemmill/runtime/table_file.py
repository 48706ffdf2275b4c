"""Tuned tables as files: which variant was fastest where, on which device, measured how."""

import hashlib
import json
import reprlib
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from gemmill.family import Tuning
from gemmill.registry import REGISTRY
from gemmill.space.names import current_name

SCHEMA_VERSION = 3
LARGEST_SIZE = 2**31 - 1
_SIZES_OF_SCHEMA_1 = ("n", "k", "m")
"""The sizes that schema 1 had as fields of a row."""

Key = tuple[str | int, ...]
"""The op, then the sizes in the sort order of rows: a table has one row for each."""


class TableError(ValueError):
    """A table cannot be used. The text is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The source of rows: one run of a program on one device."""

    gpu: str
    date: str
    """UTC, ISO 8601."""
    program: str
    sm_count: int | None = None
    driver: str | None = None
    toolkit: str | None = None
    """The CUDA compiler that made the build."""
    build: str | None = None
    commit: str | None = None
    clocks_mhz: Mapping[str, float] = field(default_factory=dict)
    """Median SM and memory clocks, and power in W, while it measured."""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """The fastest variants at these sizes, the choice first. The bucketed size of a call may be less."""

    op: str
    """The measured class of calls, by its name in the family's sweep."""
    sizes: Mapping[str, int]
    """Sizes by name, in the sort order of rows: `in_order`."""
    variants: tuple[str, ...]
    us: tuple[float, ...]
    """The variants' times, in microseconds."""
    digests: tuple[str, ...] = ()
    """Digests of the variants' inputs at the measurement; empty where the sweep did not record them."""
    codes: tuple[str, ...] = ()
    """Digests of their machine code (`machine_code.py`), empty for unknown ones."""
    tied: int = 1
    """How many of the first variants were as fast as one another."""
    source: str
    """The key of its Source."""

    @property
    def key(self) -> Key:
        """The op and the sizes of the row."""
        return self.op, *self.sizes.values()

    @property
    def shape(self) -> str:
        """Its sizes as the family lists them."""
        return " x ".join(str(self.sizes[name]) for name in _listed(self.sizes))

    @property
    def margin(self) -> float | None:
        """How much longer the runner-up takes, as a fraction; None without a runner-up."""
        return self.us[1] / self.us[0] - 1 if len(self.us) > 1 else None


@dataclass(frozen=True, kw_only=True)
class Quarantined:
    """A variant that went wrong while it was measured. Builds that have it as it was then do not choose it."""

    variant: str
    digest: str
    """The digest of its inputs, or the beginning of it."""
    code: str = ""
    """The digest of its machine code, if known."""
    why: str
    """The fault, its shape and its date."""


@dataclass(frozen=True, kw_only=True)
class TunedTable:
    """One device's rows, in the order of their keys."""

    device: str
    """The device as CUDA names it."""
    arch: str
    sources: Mapping[str, Source]
    rows: tuple[TableRow, ...]
    quarantined: tuple[Quarantined, ...] = ()
    """Quarantined variants, sorted by variant and digest."""

    @property
    def digest(self) -> str:
        """A digest of the choices alone: the same for tables that choose the same."""
        withheld = [[[q.variant, q.digest] for q in self.quarantined]] if self.quarantined else []
        text = json.dumps([self.device, [[*row.key, *row.variants] for row in self.rows], *withheld])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def in_order(sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes in the sort order of their family's rows, or in that of the alphabet where no family has such sizes."""
    tuning = _tuning_of(sizes)
    return {name: sizes[name] for name in (tuning.key if tuning is not None else sorted(sizes))}


def _listed(names: Iterable[str]) -> Iterable[str]:
    tuning = _tuning_of(names)
    return tuning.sizes if tuning is not None else names


def _tuning_of(names: Iterable[str]) -> Tuning | None:
    wanted = set(names)
    return next((tuning for tuning in REGISTRY.tunings.values() if set(tuning.sizes) == wanted), None)


def shape_heading(rows: Iterable[TableRow]) -> str:
    """The heading of `TableRow.shape` of these rows, such as M x N x K."""
    return ", ".join(dict.fromkeys(" x ".join(name.upper() for name in _listed(row.sizes)) for row in rows))


def file_name(device: str) -> str:
    """The file of a device's table: `NVIDIA H200` is nvidia-h200.json."""
    return "".join(c if c.isalnum() else "-" for c in device.lower()).strip("-") + ".json"


def make_table(
    device: str,
    arch: str,
    sources: Mapping[str, Source],
    rows: Iterable[TableRow],
    quarantined: Iterable[Quarantined] = (),
) -> TunedTable:
    """A table in canonical order, with the sources that its rows name."""
    by_kernel = {(q.variant, q.digest): q for q in quarantined}
    ordered = tuple(sorted(rows, key=lambda row: row.key))
    used = {row.source for row in ordered}
    return TunedTable(
        device=device,
        arch=arch,
        sources={key: sources[key] for key in sorted(sources) if key in used},
        rows=ordered,
        quarantined=tuple(by_kernel[key] for key in sorted(by_kernel)),
    )


def merge(old: TunedTable, new: TunedTable) -> TunedTable:
    """The rows of both tables; where both have one, the new. Raises TableError for tables of different devices."""
    if (old.device, old.arch) != (new.device, new.arch):
        raise TableError(
            f"a table of {new.device} ({new.arch}) cannot be merged into one of {old.device} ({old.arch}): "
            "a device has a table of its own"
        )
    rows = {row.key: row for row in old.rows} | {row.key: row for row in new.rows}
    quarantined = (*old.quarantined, *new.quarantined)
    return make_table(old.device, old.arch, {**old.sources, **new.sources}, rows.values(), quarantined)


def read_table(path: Path) -> TunedTable:
    """Read and check a table. Whatever the file holds, every field of the result is of its type.

    Raises TableError with one sentence, and nothing else.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would keep its reader waiting
            raise TableError(f"table {path} cannot be read: it is no file")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TableError(f"table {path} cannot be read: {error.strerror}") from None
    except TableError:
        raise
    except (ValueError, RecursionError) as error:
        raise TableError(f"table {path} is not JSON: {error}") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        raise TableError(
            f"table {path} has schema version {reprlib.repr(version)}, this gemmill reads versions 1 to {SCHEMA_VERSION}: "
            "make it again with `gemmill tune`"
        )
    try:
        sources = {key: Source(**_checked(Source, source)) for key, source in data["sources"].items()}
        rows = [_row(_with_named_sizes(row) if version == 1 else row) for row in data["rows"]]
        if not (isinstance(data["device"], str) and isinstance(data["arch"], str)):
            raise TypeError("device and arch must be texts")
        quarantined = [
            replace(q, variant=current_name(q.variant))
            for q in (Quarantined(**_checked(Quarantined, found)) for found in data.get("quarantined", ()))
        ]
        return make_table(data["device"], data["arch"], sources, _once(path, rows, sources), quarantined)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, TableError):
            raise
        raise TableError(
            f"table {path} is damaged ({type(error).__name__}: {error}): make it again with `gemmill tune`"
        ) from None


def _with_named_sizes(data: Any) -> Any:
    """A row of schema 1 as one of schema 2."""
    if not isinstance(data, dict):
        return data
    sizes = {name: data[name] for name in _SIZES_OF_SCHEMA_1}
    return {name: value for name, value in data.items() if name not in sizes} | {"sizes": sizes}


def _row(data: Any) -> TableRow:
    checked = _checked(TableRow, data)
    holds, words = _KINDS[int]
    for name, size in checked["sizes"].items():
        if not holds(size):
            raise TypeError(f"{name} is {reprlib.repr(size)}, expected {words}")
    names = {"variants": tuple(map(current_name, checked["variants"]))} if "variants" in checked else {}
    row = TableRow(**checked | names | {"sizes": in_order(checked["sizes"])})
    count, known = len(row.variants), {len(row.digests), len(row.codes)}
    if not row.variants or len(row.us) != count or not known <= {0, count}:
        raise ValueError(
            f"row {row.key} has {count} variants, {len(row.us)} times, {len(row.digests)} digests, {len(row.codes)} codes"
        )
    return row


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value <= LARGEST_SIZE


def _is_measured(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < LARGEST_SIZE


def _is_time(value: Any) -> bool:
    return _is_measured(value) and value > 0


def _list_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(holds, value))


_KINDS: Mapping[Any, tuple[Callable[[Any], bool], str]] = {
    str: (_is_text, "a text"),
    str | None: (lambda value: value is None or _is_text(value), "a text"),
    int: (_is_size, f"a whole number from 1 to {LARGEST_SIZE}"),
    int | None: (lambda value: value is None or _is_size(value), f"a whole number from 1 to {LARGEST_SIZE}"),
    tuple[str, ...]: (_list_of(_is_text), "a list of texts"),
    tuple[float, ...]: (_list_of(_is_time), "a list of times"),
    Mapping[str, int]: (lambda value: isinstance(value, dict) and bool(value), "an object of sizes"),
    Mapping[str, float]: (
        lambda value: isinstance(value, dict) and all(map(_is_measured, value.values())),
        "an object of numbers",
    ),
}
"""The test that JSON must pass for a field of a type, and the type in words."""
_FIELDS = {
    kind: {name: _KINDS[of] for name, of in get_type_hints(kind).items()} for kind in (Source, TableRow, Quarantined)
}


def _checked(kind: type[Source] | type[TableRow] | type[Quarantined], data: Any) -> dict[str, Any]:
    """The arguments for a source or row, each of its field's type. Raises TypeError."""
    if not isinstance(data, dict):
        raise TypeError(f"{kind.__name__} is {reprlib.repr(data)}, expected an object")
    holds_what = _FIELDS[kind]
    for name, value in data.items():
        if name not in holds_what:
            raise TypeError(f"{kind.__name__} has an unknown field {reprlib.repr(name)}")
        holds, words = holds_what[name]
        if not holds(value):
            raise TypeError(f"{name} is {reprlib.repr(value)}, expected {words}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


def _once(path: Path, rows: Iterable[TableRow], sources: Mapping[str, Source]) -> Iterable[TableRow]:
    seen: set[Key] = set()
    for row in rows:
        if row.key in seen:
            raise TableError(f"table {path} has two rows for {row.key}: each shape may have one")
        if row.source not in sources:
            raise TableError(f"table {path}: row {row.key} names source {row.source!r}, which the table lacks")
        seen.add(row.key)
        yield row


def table_text(table: TunedTable) -> str:
    """The file's text. Each row has a line, so that a change of one row is a change of one line."""
    head = {"schema_version": SCHEMA_VERSION, "device": table.device, "arch": table.arch}
    sources = {key: _without_defaults(source) for key, source in table.sources.items()}
    rows, quarantined = _lines(table.rows), _lines(table.quarantined)
    last = f',\n "quarantined": {quarantined}' if table.quarantined else ""
    return f'{{{json.dumps(head)[1:-1]},\n "sources": {json.dumps(sources, indent=1)},\n "rows": {rows}{last}}}\n'


def _lines(values: Iterable[TableRow | Quarantined]) -> str:
    return "[\n" + ",\n".join("  " + json.dumps(_without_defaults(value)) for value in values) + "\n]"


def _without_defaults(value: Source | TableRow | Quarantined) -> dict[str, Any]:
    defaults = {f.name: f.default for f in fields(value)}
    return {name: v for name, v in asdict(value).items() if v != defaults[name] and v not in ((), {}, None)}
