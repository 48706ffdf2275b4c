"""`gemmill cache`: the files that gemmill keeps between builds."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from gemmill.cli import options as o
from gemmill.cli.exits import ExitCode
from gemmill.cli.output import console, count, print_json, seconds, size, table
from gemmill.cli.verbs import Group

cache = typer.Typer(
    name="cache",
    cls=Group,
    help="Look after the files kept between builds.",
    rich_markup_mode=None,
    add_completion=False,
)


@cache.command("list")
def list_objects(home: o.HomeOption = None, as_json: o.JsonOption = False) -> None:
    """List compiled objects, the latest used first.

    Examples:

        gemmill cache list

        gemmill cache list --json
    """
    from gemmill.build.maintenance import cache_list

    objects = cache_list(home)
    if as_json:
        print_json(objects)
        return
    rows = [
        (
            item.key[:12],
            len(item.names),
            size(item.object_bytes),
            seconds(item.cpu_seconds),
            f"{datetime.fromtimestamp(item.used, UTC):%Y-%m-%d %H:%M}",
        )
        for item in objects
    ]
    title = f"{count(len(rows), 'object')}, {size(sum(item.object_bytes for item in objects))}"
    console().print(
        table(title, ["key", "variants", "size", "compile", "used (UTC)"], rows, right=["variants", "size", "compile"])
    )


@cache.command("gc")
def collect(
    max_age: Annotated[
        float,
        typer.Option("--max-age", min=0, metavar="DAYS", help="Remove objects that no build has used for this long."),
    ] = 30.0,
    max_size: Annotated[
        int | None,
        typer.Option(
            "--max-size", parser=o.parse_bytes, metavar="SIZE", help="Then keep at most this much, the latest used."
        ),
    ] = None,
    home: o.HomeOption = None,
) -> None:
    """Remove compiled objects that no build uses any longer. Builds stay: they do not need the cache.

    Examples:

        gemmill cache gc

        gemmill cache gc --max-age 7 --max-size 500MB
    """
    from gemmill.build.maintenance import cache_gc

    report = cache_gc(home, max_age_days=max_age, max_bytes=max_size)
    typer.echo(f"removed {count(len(report.removed), 'object')} ({size(report.freed_bytes)}), kept {report.kept}")


@cache.command("verify")
def verify_objects(home: o.HomeOption = None) -> None:
    """Read every compiled object and remove damaged ones; exits 1 if there were any.

    Examples:

        gemmill cache verify
    """
    from gemmill.build.maintenance import cache_verify

    report = cache_verify(home)
    for key in report.removed:
        typer.echo(f"damaged, removed: {key}")
    typer.echo(f"{count(report.kept, 'object')} whole")
    if report.removed:
        raise typer.Exit(ExitCode.CHECK_FAILED)
