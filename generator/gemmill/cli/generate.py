"""`gemmill generate`: emitted sources as files."""

from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import options as o
from gemmill.cli import variants
from gemmill.cli.exits import ExitCode
from gemmill.vocab import Arch


def generate(
    select: Annotated[
        str | None,
        typer.Option(
            "--select",
            metavar="NAME",
            help="A named set of variants, whose sources are written: smoke, default, nvcc, serving or sweep.",
        ),
    ] = None,
    arch: o.ArchOption = Arch.SM90A,
    filters: o.FilterOption = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Where the files go, in a folder for each architecture.")
    ] = Path("emitted"),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if a file differs.")] = False,
) -> None:
    """Write the sources of a selection, CUDA or Python.

    One file a variant. Writes only files that differ, and removes generated files that gemmill emits no more. Variants
    that differ in launch settings alone share a file. Without --select and --filter it writes the sources of smoke, and
    a file INDEX with name, template and SHA-256 of each of default's.

    Examples:

        gemmill generate

        gemmill generate --check

        gemmill generate --select sweep --filter '*streamk*' --out sources
    """
    from gemmill.build.emitted import compare_folder, emitted_files, index_of, update_folder

    if select is None and not filters:
        files = emitted_files(variants.selection_of("smoke", arch, None).configs)
        files += (index_of("default", arch, variants.selection_of("default", arch, None).configs),)
    else:
        files = emitted_files(variants.selection_of(select or "default", arch, filters).configs)
    difference = compare_folder(files, out)
    written, removed = ("missing", "stale") if check else ("new", "removed")
    for word, paths in (
        (written, [file.path for file in difference.missing]),
        ("changed", [file.path for file in difference.changed]),
        (removed, difference.stale),
    ):
        for path in paths:
            typer.echo(f"{word} {out / path}")
    if check:
        if difference:
            typer.echo(f"gemmill: {out} is not what the generator emits; run `gemmill generate`", err=True)
            raise typer.Exit(ExitCode.CHECK_FAILED)
    else:
        update_folder(difference, out)
    typer.echo(f"{difference.unchanged} of {len(files)} files unchanged in {out}")
