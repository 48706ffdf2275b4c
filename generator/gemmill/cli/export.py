"""`gemmill export`: a GEMM on its own, for somebody who does not have gemmill."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmill.cli import options as o
from gemmill.cli import variants
from gemmill.cli.exits import UsageError
from gemmill.cli.output import size
from gemmill.registry import REGISTRY

if TYPE_CHECKING:
    from gemmill.runtime.table_file import TableRow


def export(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A GEMM's name or alias, or a glob that fits one variant only."),
    ] = None,
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
    hf: Annotated[
        bool, typer.Option("--hf", help="A folder for Hugging Face's kernels, of the builds that serve or of --build.")
    ] = False,
) -> None:
    """Write a GEMM that compiles on its own, or builds for Hugging Face's Hub.

    A GEMM is written as its source, a host program that checks and times it at one shape, and the script that compiles both. Without -m, -n and -k the shape is the first at which a tuned table has the variant, with the time there.

    With --hf, runtime and builds are written as the package `kernels` loads them, from a repository of the Hub or by get_local_kernel.

    Examples:

        gemmill export "*cutlass_bf16_bf16*" -m 64 -n 4096 -k 4096

        gemmill export "*cutlass_bf16_bf16*" -m 1 -n 64 -k 100 --out reproducer

        gemmill export --hf --out hub
    """
    if hf:
        given = {"NAME": name, "-m": m, "-n": n, "-k": k, "--select": select, "--arch": arch}
        if unused := [option for option, value in given.items() if value is not None]:
            raise UsageError(f"--hf with {unused[0]}: it writes whole builds, leave {unused[0]} out")
        _export_builds(build, out or Path("hub"))
        return
    if name is None:
        raise UsageError("name a GEMM, or builds by --hf: `gemmill list` has the names")
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


def _export_builds(build: str | None, out: Path) -> None:
    from gemmill.cli.wheel import serving_builds, tell
    from gemmill.wheel import write_hub_folder
    from gemmill.wheel.hub import OLDEST

    shipped = write_hub_folder([variants.build_of(build)[0]] if build else serving_builds(), out)
    tell(shipped, size(sum(path.stat().st_size for path in shipped.path.rglob("*") if path.is_file())))
    if shipped.abi.glibc > OLDEST:
        asks, may = (".".join(map(str, version)) for version in (shipped.abi.glibc, OLDEST))
        typer.echo(
            f"gemmill: it asks for glibc {asks}, and kernels of the Hub may ask for {may}: build on a machine with {may} "
            "before you publish it",
            err=True,
        )


def _measured(name: str, arch: str, asked: dict[str, int]) -> "TableRow | None":
    """The first row of a table that timed the variant, at the sizes that were asked for."""
    from gemmill.runtime.tuned import find_tables

    rows = (row for _, table in find_tables(arch) for row in table.rows if name in row.variants)
    return next((row for row in rows if asked.items() <= row.sizes.items()), None)
