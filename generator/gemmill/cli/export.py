"""`gemmill export`: a GEMM on its own, for somebody who does not have gemmill."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmill.cli import options as o
from gemmill.cli import variants
from gemmill.cli.exits import UsageError
from gemmill.registry import REGISTRY

if TYPE_CHECKING:
    from gemmill.runtime.table_file import TableRow


def export(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A GEMM's name or alias, or a glob that fits one variant only.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Where the files go; by default a folder named as it."),
    ] = None,
    m: Annotated[int | None, typer.Option("-m", min=1, help="Rows of a and out.")] = None,
    n: Annotated[int | None, typer.Option("-n", min=1, help="Columns of b and out.")] = None,
    k: Annotated[int | None, typer.Option("-k", min=1, help="Columns of a, rows of b.")] = None,
    select: o.MaybeSelectOption = None,
    arch: o.MaybeArchOption = None,
    build: o.BuildOption = None,
) -> None:
    """Write a GEMM that compiles on its own.

    Its source, a host program that checks and times it at one shape, and the script that compiles both. Without -m, -n and -k the shape is the first at which a tuned table has the variant, with the time there.

    Examples:

        gemmill export "*cutlass_bf16_bf16*" -m 64 -n 4096 -k 4096

        gemmill export "*cutlass_bf16_bf16*" -m 1 -n 64 -k 100 --out reproducer
    """
    from gemmill.build.reproducer import reproducer
    from gemmill.writing import write_whole

    variant = variants.variant_of(name, select, arch, build)
    if REGISTRY.family_of(variant.config).tuning.sizes != ("m", "n", "k"):
        raise UsageError(f"{variant.name} is no GEMM: others cannot be exported, `gemmill show --source` prints them")
    asked = {size: value for size, value in (("m", m), ("n", n), ("k", k)) if value is not None}
    row = _measured(variant.name, variant.config.arch, asked)
    if row is None and len(asked) < 3:
        raise UsageError(f"no tuned table has {variant.name} at such a shape: name one with -m, -n and -k")
    expected = ""
    if row is not None:
        us = row.us[row.variants.index(variant.name)]
        expected = f"; it took {us:g} us with the weights in memory, by the table of gemmill"
    folder = out or Path(variant.name)
    for file in reproducer(variant.config, dict(row.sizes) if row is not None else asked, expected):
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, file.text)
    (folder / "build.sh").chmod(0o755)
    typer.echo(f"{folder / 'build.sh'} compiles and runs it")


def _measured(name: str, arch: str, asked: dict[str, int]) -> "TableRow | None":
    """The first row of a table that timed the variant, at the sizes that were asked for."""
    from gemmill.runtime.tuned import find_tables

    rows = (row for _, table in find_tables(arch) for row in table.rows if name in row.variants)
    return next((row for row in rows if asked.items() <= row.sizes.items()), None)
