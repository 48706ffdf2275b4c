"""The output of values: tables for people, JSON for scripts."""

import dataclasses
import json
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported where it prints: `--help` begins sooner
    from rich.console import Console
    from rich.table import Table

    from gemmill.manifest import KernelEntry, RejectedEntry

HOW_TO_MEASURE = "`gemmill tune --shapes FILE` measures shapes, `gemmill.tune(shapes)` does from Python"
"""The advice that follows a choice of the model."""

_WIDE = 10_000
"""Columns of a table that does not go to a terminal. Programs read its lines, and want them whole."""

_WIDE_ENOUGH = 160
"""Columns of a terminal on which names, of up to 130 characters, leave room for further columns."""
_OTHER_COLUMNS = 45
"""Columns of a terminal that alias, registers, spills and size of code take."""
_VARIANT = re.compile(r"sm\d+a_")


def console(*, stderr: bool = False) -> "Console":
    """A console on the streams as they are now."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDE
    # Names are anybody's: anything in them that looks like markup is none.
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False, soft_wrap=not stream.isatty())


def plain(text: str) -> str:
    """A text in which control characters, which a terminal would obey, have Python's spelling."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def print_json(value: Any) -> None:
    """Print a value of dataclasses, enums, paths and JSON types."""
    json.dump(value, sys.stdout, indent=2, default=_plain)
    sys.stdout.write("\n")


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()
) -> "Table":
    """A plain table; the columns `right` align to the right."""
    from rich import box
    from rich.table import Table

    result = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        result.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=column in right
        )
    for row in rows:
        result.add_row(*(plain(str(cell)) for cell in row))
    return result


def short(name: str) -> str:
    """A variant in a table with further columns: its name, or its alias where the terminal is narrow."""
    from gemmill.space.names import alias_of

    return name if not is_narrow() or not _VARIANT.match(name) else alias_of(name)


def is_narrow() -> bool:
    """Whether the output goes to a terminal on which whole names leave no room for further columns."""
    return sys.stdout.isatty() and shutil.get_terminal_size().columns < _WIDE_ENOUGH


def cut(name: str, others: int) -> str:
    """A variant's name, cut to its beginning and its end where the terminal is narrow.

    `others` counts the columns of the terminal that the rest of its line takes.
    """
    room = shutil.get_terminal_size().columns - others
    if not is_narrow() or len(name) <= room:
        return name
    return f"{name[: room // 2]}…{name[room // 2 + 1 - room :]}"


def entries_table(title: str, entries: Iterable["KernelEntry"]) -> "Table":
    """A table of each variant's machine code and cost of compilation.

    On a narrow terminal each variant has one line, without its compile time.
    """
    from gemmill.space.names import alias_of

    columns = ("name", "alias", "registers", "spills", "code", "compile")
    rows = [
        (
            cut(e.name, _OTHER_COLUMNS),
            alias_of(e.name),
            e.registers,
            size(e.spill_bytes),
            size(e.code_bytes),
            seconds(e.compile_seconds),
        )
        for e in entries
    ]
    if is_narrow():
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return table(title, columns, rows, right=columns[2:])


def families_table(title: str, entries: Iterable["KernelEntry"]) -> "Table":
    """A table of each family's variants: how many, the size of their machine code, and how many spill registers."""
    of_family: dict[str, list[KernelEntry]] = {}
    for entry in entries:
        of_family.setdefault(entry.family, []).append(entry)
    columns = ("family", "variants", "code", "that spill")
    rows = [
        (family, len(own), size(sum(e.code_bytes for e in own)), sum(e.spill_bytes > 0 for e in own))
        for family, own in sorted(of_family.items())
    ]
    return table(title, columns, rows, right=columns[1:])


def rejected_lines(rejected: Iterable["RejectedEntry"]) -> list[str]:
    """Name and error of each variant without a build, a line for each different error."""
    names: dict[str, list[str]] = {}
    for row in rejected:
        names.setdefault(row.error, []).append(row.name)
    return [f"{first}{f' and {len(more)} more' if more else ''}: {error}" for error, (first, *more) in names.items()]


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 variant, 2 variants."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def seconds(value: float) -> str:
    """Seconds as people read them: 38 s, 2 min 05 s, 1 h 20 min."""
    whole = round(value)
    if whole < 60:
        return f"{value:.1f} s" if value < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def size(value: float) -> str:
    """Bytes as people read them: 512 B, 20.5 kB, 1.2 MB, 3.5 GB."""
    for unit, power in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if value >= power:
            return f"{value / power:.1f} {unit}"
    return f"{value:.0f} B"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
