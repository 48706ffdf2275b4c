"""The measured choices that a build selects by: from the user's tables and the shipped ones, row by row.

A row has the fastest variants on one device with one driver and one source of a kernel. How far that holds here is its
trust. Where several tables have a row for a shape, the most trusted is taken, then the one found first. A variant that
was nearly as fast serves a row whose winner has changed since, no longer as exact. The reader refuses a row without
one, and a table that it cannot read. A row of another device speaks up to a size that its family names; other rows
answer larger calls.
"""

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache, cached_property
from pathlib import Path

import torch

from gemmill import settings
from gemmill.locations import runtime_tables_dir
from gemmill.manifest import KernelEntry, Manifest
from gemmill.registry import REGISTRY
from gemmill.runtime.machine_code import is_same, machine_code
from gemmill.runtime.table_file import TableError, TableRow, TunedTable, read_table
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Compiler

_SHIPPED = runtime_tables_dir()
_DRIVER = Path("/sys/module/nvidia/version")
STALE_MARGIN = 1.03
"""How many times the winner's time a variant may have taken to serve in its place, once the winner's kernel has
changed.

It is about the loss of the analytic model (docs/notes/tables.md).
"""


class TableTrust(IntEnum):
    """How well a row's circumstances fit this machine, the best first."""

    EXACT = 0
    """this device and driver"""
    DRIVER_CHANGED = 1
    """this device, another driver (or an unknown one)"""
    COMPILER_CHANGED = 2
    """this device, and kernels of another release of nvcc, whose machine code is another or not known"""
    OTHER_DEVICE = 3
    """another device of the same architecture: there the model decides at a large M"""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine whose device and driver decide the trust in tables."""

    arch: str
    device: str | None
    """The device as CUDA names it, or None without one. Then tables of any device of the architecture are exact."""
    driver: str | None
    nvcc: str = ""
    """The version of the CUDA compiler that made the build; empty where that does not matter."""


@dataclass(frozen=True, kw_only=True)
class TunedChoice:
    """The variants for calls of these sizes, the best first. The bucketed size of a call may be less."""

    family: str
    call_class: int
    """The number of the class, which the family gives."""
    sizes: Mapping[str, int]
    names: tuple[str, ...]
    exact: bool = True
    """Whether the first was the fastest at the measurement. Else the winner's kernel has changed since."""

    @property
    def key(self) -> tuple[int, ...]:
        """The class and sizes of the choice, in the sort order of the family's choices."""
        return (self.call_class, *(self.sizes[name] for name in REGISTRY.tunings[self.family].key))


@dataclass(frozen=True, kw_only=True)
class LoadedTable:
    """A table found on this machine, and the use of its rows."""

    path: Path
    table: TunedTable
    trusts: Mapping[TableTrust, int]
    """How many rows have each trust."""
    stale: int
    """Rows whose winner has changed since, so that a variant that was nearly as fast serves in its place."""
    refused: int
    """Rows whose winner has changed since, without such a variant."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """All measured choices for a build."""

    choices: tuple[TunedChoice, ...]
    tables: tuple[LoadedTable, ...]
    quarantined: Mapping[str, str] = field(default_factory=dict)
    """Variants of the build that no call gets, and why, by name."""

    @cached_property
    def digest(self) -> str:
        """A digest of the choices: processes with the same digest and build choose alike. Made once, for an engine asks at each layer."""
        withheld = [list(self.quarantined)] if self.quarantined else []
        text = json.dumps([*([c.family, *c.key, c.exact, *c.names] for c in self.choices), *withheld])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def machine(manifest: Manifest) -> Machine:
    """This machine and a build's compiler, as far as tables care."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    try:
        driver = _DRIVER.read_text(encoding="ascii").strip()
    except OSError:
        driver = None
    return Machine(arch=manifest.arch, device=device, driver=driver, nvcc=manifest.toolchain.nvcc)


def load_tuned(entries: Iterable[KernelEntry], here: Machine) -> Tuned:
    """The choices for a build's entries. Warns of a table that cannot be used; raises nothing."""
    built = {entry.name: entry for entry in entries}
    found: list[tuple[TableTrust, bool, TableRow]] = []
    loaded = []
    tables = list(find_tables(here.arch))
    quarantined = {
        q.variant: q.why
        for _, table in tables
        for q in table.quarantined
        if q.variant in built and is_same(built[q.variant], q.digest, q.code)
    }
    for path, table in tables:
        kept = [(row, current) for row in table.rows if (current := current_row(row, built)) is not None]
        trusts = [trust_of(row, table, here, built) for row, _ in kept]
        stale = [row.variants[0] != current.variants[0] for row, current in kept]
        found += zip(trusts, stale, (current for _, current in kept), strict=True)
        counts = {trust: trusts.count(trust) for trust in TableTrust}
        refused = len(table.rows) - len(kept)
        loaded.append(LoadedTable(path=path, table=table, trusts=counts, stale=sum(stale), refused=refused))
    found.sort(key=lambda item: item[:2])  # stable: of equally trusted rows the first found
    choices: dict[tuple[str, tuple[int, ...]], TunedChoice] = {}
    for trust, is_stale, row in found:
        for choice in siblings(row, exact=not is_stale):
            tuning = REGISTRY.tunings[choice.family]
            if trust is TableTrust.OTHER_DEVICE and not tuning.reach.speaks_abroad(row.sizes[tuning.bucketed]):
                continue
            names = tuple(name for name in choice.names if name not in quarantined)
            if names:
                left = choice if names == choice.names else replace(choice, names=names)
                choices.setdefault((choice.family, choice.key), left)
    ordered = tuple(choices[key] for key in sorted(choices))
    return Tuned(choices=ordered, tables=tuple(loaded), quarantined=dict(sorted(quarantined.items())))


def find_tables(arch: str) -> Iterator[tuple[Path, TunedTable]]:
    """The tables of an architecture: those of GEMMILL_TABLES, of the home, and the shipped ones, in this order.

    One that cannot be read is left out with a warning: a table never makes a call fail that works without it.
    """
    for path in table_files():
        try:
            table = _read(path, _changed_ns(path))
        except TableError as error:
            warnings.warn(f"gemmill: {error}; it is left out", RuntimeWarning, stacklevel=2)
            continue
        if table.arch == arch:
            yield path, table


def shipped_rows(arch: str) -> Iterator[TableRow]:
    """The rows of the shipped tables of an architecture, of whichever device. Raises nothing."""
    shipped = set(_tables_in(_SHIPPED))
    for path, table in find_tables(arch):
        if path in shipped:
            yield from table.rows


def table_files() -> list[Path]:
    """Files of tables, the most preferred first."""
    named = [path for place in settings.tables() for path in (_tables_in(place) if _is_folder(place) else [place])]
    return [*named, *_tables_in(settings.home() / "tables"), *_tables_in(_SHIPPED)]


def _is_folder(place: Path) -> bool:
    try:
        return place.is_dir()
    except OSError:  # then it cannot be read either, and the reader's sentence says why
        return False


def _tables_in(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob("*.json"))
    except OSError:
        return [folder]


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@cache
def _read(path: Path, _changed: int) -> TunedTable:
    return read_table(path)


def trust_of(row: TableRow, table: TunedTable, here: Machine, built: Mapping[str, KernelEntry]) -> TableTrust:
    """How well the row fits the machine and a build's kernels."""
    if here.device is None:
        return TableTrust.EXACT
    if table.device != here.device:
        return TableTrust.OTHER_DEVICE
    source = table.sources[row.source]
    if source.toolkit and here.nvcc and source.toolkit != here.nvcc and not _keeps_code(row, built):
        return TableTrust.COMPILER_CHANGED
    return TableTrust.EXACT if source.driver == here.driver else TableTrust.DRIVER_CHANGED


def _keeps_code(row: TableRow, built: Mapping[str, KernelEntry]) -> bool:
    """Whether the winner's machine code is the same with another release of nvcc, as far as a build has it.

    The digest of a kernel of the CuTe DSL covers its own compiler.
    """
    entry = built.get(row.variants[0])
    if entry is None or REGISTRY.kernels_of(entry.config).compiler is not Compiler.NVCC:
        return True
    return bool(row.codes) and row.codes[0] == machine_code(entry) != ""


def current_row(row: TableRow, built: Mapping[str, KernelEntry]) -> TableRow | None:
    """The row with those variants whose kernel is as it was measured, by a build's entries. Those that it lacks stay.

    It is None where neither the winner is, nor a variant that took at most STALE_MARGIN times as long. A runner-up may
    be far behind.
    """
    if not row.digests:
        return row
    codes = row.codes or ("",) * len(row.variants)
    measured = enumerate(zip(row.variants, row.digests, codes, strict=True))
    fits = [i for i, (name, *was) in measured if name not in built or is_same(built[name], *was)]
    if not fits or row.us[fits[0]] > STALE_MARGIN * row.us[0]:
        return None
    if len(fits) == len(row.variants):
        return row
    return replace(
        row,
        variants=tuple(row.variants[i] for i in fits),
        us=tuple(row.us[i] for i in fits),
        digests=tuple(row.digests[i] for i in fits),
        codes=tuple(row.codes[i] for i in fits) if row.codes else (),
    )


def siblings(row: TableRow, *, exact: bool) -> list[TunedChoice]:
    """A row's variants for each class of calls that they can serve."""
    try:
        ops = len(REGISTRY.ops)
        family, first = _offers(row.variants[0], ops)
        others = [_offers(variant, ops)[1] for variant in row.variants[1:]]
    except ValueError:
        return []  # of a later gemmill, or of a family without tuning: nothing that this build has
    if row.sizes.keys() != set(REGISTRY.tunings[family].sizes):
        return []  # the same
    return [
        TunedChoice(
            family=family,
            call_class=call_class,
            sizes=row.sizes,
            names=(*names, *(name for other in others for name in other.get(call_class, ()))),
            exact=exact,
        )
        for call_class, names in first.items()
    ]


def times_of(row: TableRow, family: str, call_class: int) -> dict[str, float]:
    """The microseconds of a row's variants, by the names that they have in a class of calls; empty where it says nothing
    of the class."""
    found: dict[str, float] = {}
    for variant, us in zip(row.variants, row.us, strict=True):
        try:
            owner, offered = _offers(variant, len(REGISTRY.ops))
        except ValueError:
            continue  # of a later gemmill, as in `siblings`
        if owner == family:
            found |= {name: us for name in offered.get(call_class, ()) if name not in found}
    return found


@cache
def _offers(variant: str, _ops: int) -> tuple[str, dict[int, tuple[str, ...]]]:
    """A variant's family, and by class the names of the variants that its measurement stands for.

    `_ops` is the number of ops. Raises ValueError.
    """
    config = parse_name(variant)
    family = REGISTRY.family_of(config)
    if not family.tuning.is_measured:
        raise ValueError(f"{variant}: variants of {family.name} are not chosen among")
    offered = family.tuning.offers(config).items()
    return family.name, {call_class: tuple(map(to_name, configs)) for call_class, configs in offered}
