"""The measured choices that a build selects by: from the user's tables and the shipped ones, row by row.

A row says what was fastest on one device with one driver and one source of a kernel. How far that holds here is its
trust; where several tables have a row for a shape, the most trusted is taken, then the one found first. A row whose winner
has changed since is served by a variant that was nearly as fast, and no longer called exact; a row without one is refused,
and so is a table that cannot be read: calls are then answered by other rows.
"""

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from pathlib import Path

import torch

from gemmill import settings
from gemmill.families.scaled_mm.config import RESULTS_OF, KernelConfig, Problem
from gemmill.families.scaled_mm.names import parse_gemm_name
from gemmill.locations import runtime_tables_dir
from gemmill.manifest import KernelEntry
from gemmill.runtime.problem import Need, problem_code, scales_codes_of
from gemmill.runtime.table_file import TableError, TableRow, TunedTable, read_table
from gemmill.space.names import to_name
from gemmill.vocab import DType, EpilogueKind, ScaleLayout

_SHIPPED = runtime_tables_dir()
_DRIVER = Path("/sys/module/nvidia/version")
STALE_MARGIN = 1.03
"""How much longer than the winner, whose kernel has changed since, a variant may have taken to serve in its place: about what
the analytic model loses (docs/notes/tables.md)."""


class TableTrust(IntEnum):
    """How well a row's circumstances fit this machine, the best first."""

    EXACT = 0
    """this device and driver"""
    DRIVER_CHANGED = 1
    """this device, another driver (or one that is not known)"""
    OTHER_DEVICE = 2
    """another device of the same architecture"""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What tables are held against."""

    arch: str
    device: str | None
    """As CUDA names it; None where there is none: then tables of any device of the architecture are exact."""
    driver: str | None


@dataclass(frozen=True, kw_only=True)
class TunedChoice:
    """At (n, k), for up to m rows: these variants, best first."""

    problem: int
    n: int
    k: int
    m: int
    names: tuple[str, ...]
    exact: bool = True
    """Whether the first is what was measured to be the fastest: else the winner's kernel has changed since."""


@dataclass(frozen=True, kw_only=True)
class LoadedTable:
    """A table that was found, and what became of its rows."""

    path: Path
    table: TunedTable
    trusts: Mapping[TableTrust, int]
    """How many rows have each."""
    stale: int
    """Rows whose winner has changed since, served by a variant that was nearly as fast."""
    refused: int
    """Rows whose winner has changed since, without such a variant."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """All measured choices for a build."""

    choices: tuple[TunedChoice, ...]
    tables: tuple[LoadedTable, ...]

    @property
    def digest(self) -> str:
        """Of the choices: processes with the same digest and build choose alike."""
        text = json.dumps([[c.problem, c.n, c.k, c.m, c.exact, *c.names] for c in self.choices])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def machine(arch: str) -> Machine:
    """This one, as far as tables care."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    try:
        driver = _DRIVER.read_text(encoding="ascii").strip()
    except OSError:
        driver = None
    return Machine(arch=arch, device=device, driver=driver)


def load_tuned(entries: Iterable[KernelEntry], here: Machine) -> Tuned:
    """The choices for a build's entries. Warns of a table that cannot be used; raises nothing."""
    digests = {entry.name: entry.source_digest for entry in entries}
    found: list[tuple[TableTrust, bool, TableRow]] = []
    loaded = []
    for path, table in find_tables(here.arch):
        kept = [(row, current) for row in table.rows if (current := current_row(row, digests)) is not None]
        trusts = [trust_of(row, table, here) for row, _ in kept]
        stale = [row.variants[0] != current.variants[0] for row, current in kept]
        found += zip(trusts, stale, (current for _, current in kept), strict=True)
        counts = {trust: trusts.count(trust) for trust in TableTrust}
        refused = len(table.rows) - len(kept)
        loaded.append(LoadedTable(path=path, table=table, trusts=counts, stale=sum(stale), refused=refused))
    found.sort(key=lambda item: item[:2])  # stable: of equally trusted rows the first found
    choices: dict[tuple[int, int, int, int], TunedChoice] = {}
    for _, is_stale, row in found:
        for choice in siblings(row, exact=not is_stale):
            choices.setdefault((choice.problem, choice.n, choice.k, choice.m), choice)
    return Tuned(choices=tuple(choices[key] for key in sorted(choices)), tables=tuple(loaded))


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


def table_files() -> list[Path]:
    """Files that hold tables, in the order in which they are preferred."""
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


def trust_of(row: TableRow, table: TunedTable, here: Machine) -> TableTrust:
    """How well the row fits the machine."""
    if here.device is None:
        return TableTrust.EXACT
    if table.device != here.device:
        return TableTrust.OTHER_DEVICE
    return TableTrust.EXACT if table.sources[row.source].driver == here.driver else TableTrust.DRIVER_CHANGED


def current_row(row: TableRow, digests: Mapping[str, str]) -> TableRow | None:
    """The row with those variants whose kernel is as it was measured, by a build's `digests` of its variants.

    None where the winner is not, nor one that took at most STALE_MARGIN longer: a runner-up may be far behind.
    """
    if not row.digests:
        return row
    measured = zip(row.variants, row.digests, strict=True)
    fits = [i for i, (name, digest) in enumerate(measured) if digests.get(name, digest).startswith(digest)]
    if not fits or row.us[fits[0]] > STALE_MARGIN * row.us[0]:
        return None
    return replace(
        row,
        variants=tuple(row.variants[i] for i in fits),
        us=tuple(row.us[i] for i in fits),
        digests=tuple(row.digests[i] for i in fits),
    )


def siblings(row: TableRow, *, exact: bool) -> list[TunedChoice]:
    """A row was measured for one output dtype and epilogue. Its schedules are offered to the sibling classes of the same
    operands too, and those of bf16 operands to f16: the main loop, which decides, is the same."""
    try:
        classes = _classes(row.variants[0])
        names = {key: tuple(name for variant in row.variants for name in _names_for(variant, *key)) for key in classes}
    except ValueError:
        return []  # of a later gemmill, or of no GEMM: nothing that this build has
    return [
        TunedChoice(problem=problem, n=row.n, k=row.k, m=row.m, names=names[key], exact=exact)
        for key, problems in classes.items()
        for problem in problems
    ]


@cache
def _classes(variant: str) -> dict[tuple[Need, DType], tuple[int, ...]]:
    problem = parse_gemm_name(variant).problem
    # A variant that reads scales in one layout alone is not found among the rows of the other.
    layout = ScaleLayout.STRIDED if problem.scale_groups else ScaleLayout.VECTOR
    kinds = scales_codes_of(problem.scale_groups, layout)
    needs = (Need.AZP_ROW, Need.AZP_TOKEN) if problem.epilogue.takes_azp else (Need.SCALE, Need.BIAS)
    return {
        (need, out): tuple(
            problem_code(need, _operand(problem, out).torch_name, out.torch_name, kind) for kind in kinds
        )
        for out in (DType.BF16, DType.F16)
        for need in needs
    }


def _operand(problem: Problem, out: DType) -> DType:
    """Of the sibling with results of `out`: the same, or of 16 bits as they are."""
    return problem.a_dtype if out in RESULTS_OF[problem.a_dtype] else out


_KINDS = {
    Need.SCALE: (EpilogueKind.SCALED, EpilogueKind.SCALED_BIAS),
    Need.BIAS: (EpilogueKind.SCALED_BIAS,),
    Need.AZP_ROW: (EpilogueKind.SCALED_AZP, EpilogueKind.SCALED_AZP_PER_TOKEN),
    Need.AZP_TOKEN: (EpilogueKind.SCALED_AZP_PER_TOKEN,),
}


@cache
def _names_for(variant: str, need: Need, out: DType) -> tuple[str, ...]:
    config: KernelConfig = parse_gemm_name(variant)
    operand = _operand(config.problem, out)
    sibling = replace(config.problem, a_dtype=operand, b_dtype=operand, out_dtype=out)
    return tuple(to_name(replace(config, problem=replace(sibling, epilogue=kind))) for kind in _KINDS[need])
