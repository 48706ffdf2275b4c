"""`gemmill table`: look at tuned tables, compare and merge them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmill.cli import options as o
from gemmill.cli import variants
from gemmill.cli.exits import ExitCode, UsageError
from gemmill.cli.options import MarginOption
from gemmill.cli.output import console, count, print_json, short, table
from gemmill.cli.verbs import Group

if TYPE_CHECKING:
    from rich.table import Table

    from gemmill.runtime.table_file import TableRow
    from gemmill.tuner.record import Record

tables = typer.Typer(
    name="table",
    cls=Group,
    help="Look at tuned tables, compare and merge them.",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
)


@tables.command("show")
def show(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A table; by default those that a build loads.")
    ] = None,
    build: o.BuildOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Print a table, or the tables that a build chooses by.

    With their digest, which ranks of a server may compare, and the trust in each table on this machine.

    Examples:

        gemmill table show

        gemmill table show nvidia-h200.json --json
    """
    from gemmill.runtime.table_file import read_table

    if file is None:
        _show_loaded(build, as_json)
        return
    o.refuse_beside("FILE", "a table is printed as it is, whatever the build", build=build)
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
    title = f"{count(len(found.rows), 'row')} of {found.device} ({found.arch}), digest {found.digest}"
    console().print(rows_table(title, found.rows, "source"))
    for key, source in found.sources.items():
        clocks = ", ".join(f"{name} {value:g}" for name, value in source.clocks_mhz.items())
        typer.echo(
            f"{key}: {source.program} on {source.gpu}, driver {source.driver or 'unknown'}, {source.date}; {clocks or 'clocks unknown'}"
        )


def rows_table(title: str, rows: "Sequence[TableRow]", *more: str) -> "Table":
    """Rows of a tuned table, as a table for people. `more` names further fields of the rows."""
    from gemmill.runtime.table_file import shape_heading

    columns = ["op", shape_heading(rows), "us", "runner-up", "tied", "variant", *more]
    cells = [
        (
            *(row.op, row.shape, f"{row.us[0]:.2f}", "-" if row.margin is None else f"{row.margin:+z.1%}"),
            *(row.tied, short(row.variants[0]), *(getattr(row, name) for name in more)),
        )
        for row in rows
    ]
    return table(title, columns, cells, right=columns[2:5])


def _show_loaded(build: str | None, as_json: bool) -> None:
    from gemmill.runtime.tuned import load_tuned, machine

    _, manifest = variants.build_of(build)
    tuned = load_tuned(manifest.entries, machine(manifest))
    built = {entry.name for entry in manifest.entries}
    loaded = [
        {
            "path": found.path,
            "device": found.table.device,
            "digest": found.table.digest,
            "rows": len(found.table.rows),
            "stale": found.stale,
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
    columns = ["table", "device", "rows", "stale", "refused", "not built", "trust"]
    numbers = ("rows", "stale", "refused", "not_built")
    rows = [(row["path"], row["device"], *(row[name] for name in numbers), _counts(row["trust"])) for row in loaded]
    title = f"{count(len(tuned.choices), 'choice')} of build {manifest.build_id}, digest {tuned.digest}; the first table is preferred"
    console().print(table(title, columns, rows, right=columns[2:6]))


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
    from gemmill.runtime.table_file import read_table, shape_heading

    before = {row.key: row for row in read_table(old).rows}
    after = {row.key: row for row in read_table(new).rows}
    heading = shape_heading([*before.values(), *after.values()])
    changes = [
        _change(heading, before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if _chosen(before.get(key)) != _chosen(after.get(key))
    ]
    if as_json:
        print_json(changes)
    else:
        columns = ["op", heading, "old us", "new us", "old", "new"]
        rows = [tuple(short(str(change[column])) for column in columns) for change in changes]
        console().print(
            table(f"{count(len(changes), 'row')} of {len(before.keys() | after.keys())} differ", columns, rows)
        )
    if changes:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _change(heading: str, before: "TableRow | None", after: "TableRow | None") -> dict[str, Any]:
    shown = after or before
    assert shown is not None  # the key is of one of them
    return {
        "op": shown.op,
        heading: shown.shape,
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
    forget_digests: Annotated[
        bool,
        typer.Option(
            "--forget-digests",
            help="Trust rows whatever their kernels' sources are: for a table that is shipped with them.",
        ),
    ] = False,
    current: Annotated[
        str | None,
        typer.Option("--current", metavar="BUILD", help="Leave out kernels that changed since their measurement."),
    ] = None,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where the merged table is written.")],
) -> None:
    """Merge tables of one device, row by row.

    Examples:

        gemmill table merge shipped.json measured.json --out nvidia-h200.json

        gemmill table merge shipped.json --current 97cda050d7a3 --out nvidia-h200.json
    """
    from gemmill.runtime.machine_code import noted
    from gemmill.runtime.table_file import TableError, make_table, merge, read_table, table_text
    from gemmill.runtime.tuned import current_row
    from gemmill.writing import write_whole

    merged = read_table(files[0])
    for path in files[1:]:
        try:
            merged = merge(merged, read_table(path))
        except TableError as error:
            raise UsageError(f"{path}: {error}") from None
    if current is not None:
        _, manifest = variants.build_of(current)
        built = {entry.name: entry for entry in manifest.entries}
        current_rows = ((row, current_row(row, built)) for row in merged.rows)
        # A runner-up must not pass for the winner.
        kept = [now for row, now in current_rows if now is not None and now.variants[0] == row.variants[0]]
        merged = noted(make_table(merged.device, merged.arch, merged.sources, kept, merged.quarantined), [manifest])
    if forget_digests:
        rows = [replace(row, digests=(), codes=()) for row in merged.rows]
        merged = make_table(merged.device, merged.arch, merged.sources, rows, merged.quarantined)
    write_whole(out, table_text(merged))
    typer.echo(f"{count(len(merged.rows), 'row')} of {merged.device}, digest {merged.digest}: {out}")


@tables.command("make")
def make(
    journal: Annotated[Path, typer.Argument(metavar="JOURNAL", help="The journal of `gemmill tune`, finished or not.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The table whose rows are replaced.")],
    margin: MarginOption = 0.03,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write the HTML report too.")] = None,
) -> None:
    """Make a table from a journal, without measuring anything.

    As `gemmill tune` does at its end, for an interrupted sweep or for another margin, on any machine. A journal may be
    packed with xz. An older journal has no digests of its builds: builds on this machine give them, and rows of others
    have none.

    Examples:

        gemmill table make sweep.jsonl --out nvidia-h200.json --report sweep.html
    """
    from gemmill.tuner.journal import read_journal
    from gemmill.tuner.report import write_report
    from gemmill.tuner.tables import builds_measured, tables_of, write_table

    record = read_journal(journal)
    repeats = 1 + max((key[1] for key in record.entries), default=0)
    if untold := sorted(set(builds_measured(record)) - set(record.builds)):
        _tell_builds(record, untold)
    for found in tables_of(record, repeats, margin):
        merged = write_table(found, out)
        typer.echo(f"{count(len(found.rows), 'row')} of {found.device}, digest of the table {merged.digest}: {out}")
    if report is not None:
        write_report(record, report, repeats=repeats, margin=margin)
        typer.echo(f"report: {report}")


def _tell_builds(record: "Record", untold: Sequence[str]) -> None:
    """Add to a record the builds that its journal says nothing of, as far as they are here; say which are not."""
    from gemmill.manifest import ManifestError
    from gemmill.runtime.builds import read_build, resolve
    from gemmill.tuner.tables import measured_build

    for folder in untold:
        try:
            manifest = read_build(Path(folder) if Path(folder).is_dir() else resolve(Path(folder).name))
        except ManifestError:
            typer.echo(
                f"gemmill: the journal has no digests of build {Path(folder).name}, which is not here: its rows are trusted "
                "whatever their kernels are, until `gemmill tune` measures them again",
                err=True,
            )
        else:
            record.builds[folder] = measured_build(manifest)


def _chosen(row: "TableRow | None") -> str | None:
    return row.variants[0] if row is not None else None
