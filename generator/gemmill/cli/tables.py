"""`gemmill table`: look at tuned tables, compare and merge them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gemmill.cli import options as o
from gemmill.cli import variants
from gemmill.cli.exits import ExitCode, UsageError
from gemmill.cli.output import console, count, print_json, table
from gemmill.runtime.table_file import TableError, TableRow, merge, read_table, table_text

tables = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@tables.command("show")
def show(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A table; without one, what a build loads.")
    ] = None,
    build: o.BuildOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Print a table, or the tables that a build chooses by.

    With their digest, which ranks of a server may compare, and how far each table is trusted on this machine.

    Examples:

        gemmill table show

        gemmill table show nvidia-h200.json --json
    """
    if file is None:
        _show_loaded(build, as_json)
        return
    found = read_table(file)
    if as_json:
        print_json(
            {
                "device": found.device,
                "arch": found.arch,
                "digest": found.digest,
                "sources": found.sources,
                "rows": found.rows,
            }
        )
        return
    columns = ["op", "M x N x K", "us", "runner-up", "tied", "variant", "source"]
    rows = [
        (row.op, _shape(row), f"{row.us[0]:.2f}", _margin(row), row.tied, row.variants[0], row.source)
        for row in found.rows
    ]
    title = f"{count(len(rows), 'row')} of {found.device} ({found.arch}), digest {found.digest}"
    console().print(table(title, columns, rows, right=columns[2:5]))
    for key, source in found.sources.items():
        clocks = ", ".join(f"{name} {value:g}" for name, value in source.clocks_mhz.items())
        typer.echo(
            f"{key}: {source.program} on {source.gpu}, driver {source.driver or 'unknown'}, {source.date}; {clocks or 'clocks unknown'}"
        )


def _show_loaded(build: str | None, as_json: bool) -> None:
    from gemmill.runtime.tuned import load_tuned, machine

    _, manifest = variants.build_of(build)
    tuned = load_tuned(manifest.entries, machine(manifest.arch))
    built = {entry.name for entry in manifest.entries}
    loaded = [
        {
            "path": found.path,
            "device": found.table.device,
            "digest": found.table.digest,
            "rows": len(found.table.rows),
            "refused": found.refused,
            "not_built": sum(not built.intersection(row.variants) for row in found.table.rows),
            "trust": {trust.name.lower(): number for trust, number in found.trusts.items() if number},
        }
        for found in tuned.tables
    ]
    if as_json:
        print_json(
            {"build": manifest.build_id, "digest": tuned.digest, "choices": len(tuned.choices), "tables": loaded}
        )
        return
    columns = ["table", "device", "rows", "refused", "not built", "trust"]
    rows = [
        (row["path"], row["device"], row["rows"], row["refused"], row["not_built"], _counts(row["trust"]))
        for row in loaded
    ]
    title = f"{count(len(tuned.choices), 'choice')} of build {manifest.build_id}, digest {tuned.digest}; the first table is preferred"
    console().print(table(title, columns, rows, right=columns[2:5]))


def _counts(trusts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in trusts.items()) or "-"


@tables.command("diff")
def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD")],
    new: Annotated[Path, typer.Argument(metavar="NEW")],
    as_json: o.JsonOption = False,
) -> None:
    """Print the rows in which two tables choose otherwise.

    Exits 1 if there are any.

    Examples:

        gemmill table diff nvidia-h200.json ~/.cache/gemmill/tables/nvidia-h200.json
    """
    before = {row.key: row for row in read_table(old).rows}
    after = {row.key: row for row in read_table(new).rows}
    changes = [
        _change(before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if _chosen(before.get(key)) != _chosen(after.get(key))
    ]
    if as_json:
        print_json(changes)
    else:
        columns = ["op", "M x N x K", "old us", "new us", "old", "new"]
        rows = [tuple(change[column] for column in columns) for change in changes]
        console().print(
            table(f"{count(len(changes), 'row')} of {len(before.keys() | after.keys())} differ", columns, rows)
        )
    if changes:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _change(before: TableRow | None, after: TableRow | None) -> dict[str, Any]:
    shown = after or before
    assert shown is not None  # the key is of one of them
    return {
        "op": shown.op,
        "M x N x K": _shape(shown),
        "old us": "-" if before is None else before.us[0],
        "new us": "-" if after is None else after.us[0],
        "old": _chosen(before) or "-",
        "new": _chosen(after) or "-",
    }


@tables.command("merge")
def merge_tables(
    files: Annotated[
        list[Path], typer.Argument(metavar="TABLE...", help="Of two rows for a shape the later table's stays.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where the merged table is written.")],
) -> None:
    """Merge tables of one device, row by row.

    Examples:

        gemmill table merge shipped.json measured.json --out nvidia-h200.json
    """
    from gemmill.build.files import write_whole

    merged = read_table(files[0])
    for path in files[1:]:
        try:
            merged = merge(merged, read_table(path))
        except TableError as error:
            raise UsageError(f"{path}: {error}") from None
    write_whole(out, table_text(merged))
    typer.echo(f"{count(len(merged.rows), 'row')} of {merged.device}, digest {merged.digest}: {out}")


def _shape(row: TableRow) -> str:
    return f"{row.m} x {row.n} x {row.k}"


def _margin(row: TableRow) -> str:
    return "-" if row.margin is None else f"{row.margin:+.1%}"


def _chosen(row: TableRow | None) -> str | None:
    return row.variants[0] if row is not None else None
