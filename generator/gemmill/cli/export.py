"""`gemmill export`: a kernel on its own, or builds, for somebody who does not have gemmill."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmill.cli import options as o
from gemmill.cli import variants
from gemmill.cli.exits import UsageError
from gemmill.cli.output import size
from gemmill.cli.questions import take
from gemmill.cli.wheel import ExperimentalOption
from gemmill.registry import questions

if TYPE_CHECKING:
    from gemmill.numerics.cases import Case
    from gemmill.numerics.dumped import Dumped
    from gemmill.runtime.table_file import TableRow


_SIZES = [option for option in questions().values() if option.is_size]


def export(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A variant's name or alias, or a glob that fits one variant only."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Where the files go; by default a folder named as it."),
    ] = None,
    arch: o.MaybeArchOption = None,
    build: o.BuildOption = None,
    hub: Annotated[
        bool, typer.Option("--hub", help="A folder for Hugging Face's kernels, of the builds that serve or of --build.")
    ] = False,
    saved: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="A call that GEMMILL_DUMP saved: its variant on its own operands."),
    ] = None,
    experimental: ExperimentalOption = False,
    **told: Any,
) -> None:
    """Write a kernel that compiles on its own, or builds for the Hub.

    A kernel is written as its source, a call of it with the reference's result, and a host program that checks and
    times it. A script compiles both. Needs no GPU. The sizes of the call are those of options. Sizes that they leave
    out come from the first row of a tuned table that timed the variant, with the time there.

    With --from, the call is one that a program made under GEMMILL_DUMP=FOLDER. The script compares the results with
    those of that call, and these with the reference.

    With --hub, runtime and builds are written as Hugging Face's package `kernels` loads them, from a repository of the Hub or by get_local_kernel.

    Examples:

        gemmill export "*cutlass_bf16_bf16*" -m 64 -n 4096 -k 4096

        gemmill export "*rmstoken_bf16_e4m3*_sym" -m 64 --hidden 4096 --out reproducer

        gemmill export --from calls/first.safetensors --out replay

        gemmill export --hub --out hub
    """
    asked = {size: value for size, value in told.items() if value is not None}
    if hub:
        _refuse("--hub", "it writes whole builds", asked, {"NAME": name, "--arch": arch, "--from": saved})
        _export_builds(build, out or Path("hub"), experimental=experimental)
        return
    if experimental:
        raise UsageError("--experimental without --hub: it is about whole builds, leave it out")
    if saved is not None:
        _refuse("--from", "the file says which call it is", asked, {"NAME": name, "--arch": arch})
        folder = _export_saved(saved, build, out)
        typer.echo(f"{folder / 'build.sh'} compiles and runs it")
        return
    if name is None:
        raise UsageError("name a variant, a saved call by --from, or builds by --hub: `gemmill list` has the names")
    variant = variants.variant_of(name, None, arch, build)
    folder = out or Path(variant.name)
    _export_variant(variant, asked, folder)
    typer.echo(f"{folder / 'build.sh'} compiles and runs it")


take(export, _SIZES)


def _refuse(mode: str, why: str, sizes: Mapping[str, int], others: Mapping[str, Any]) -> None:
    """Raise UsageError for an option that has no use together with `mode`."""
    flags = {size.name: size.flags for size in _SIZES}
    given = [option for option, value in others.items() if value is not None]
    if unused := [*given, *(flags[size] for size in sizes)]:
        raise UsageError(f"{mode} with {unused[0]}: {why}, leave {unused[0]} out")


def _export_variant(variant: variants.Variant, asked: dict[str, int], folder: Path) -> None:
    from gemmill.numerics.cases import cases_of

    _refuse_unbuilt(variant)
    sizes, row = _sizes_of(variant, asked)
    expected = ""
    if row is not None:
        us = row.us[row.variants.index(variant.name)]
        expected = f"; it took {us:g} us with the weights in memory, by the table of gemmill"
    _write(variant, cases_of(variant.config).sized(variant.config, sizes), expected, folder)


def _export_saved(file: Path, build: str | None, out: Path | None) -> Path:
    """Write the variant of a saved call on its own operands. Returns the folder."""
    from gemmill.numerics.dumped import read_dump

    call = read_dump(file)
    variant = variants.variant_of(call.variant, None, None, build)
    _refuse_unbuilt(variant)
    folder = out or Path(file.stem)
    _write(variant, call, "", folder)
    for name, error in call.errors().items():
        typer.echo(f"{name}, as it was written then, {error}")
    return folder


def _refuse_unbuilt(variant: variants.Variant) -> None:
    if variant.folder is None:
        raise UsageError(
            f"{variant.name} is not in a build: `gemmill build --filter {variant.name}` makes one to export it from"
        )


def _write(variant: variants.Variant, call: "Case | Dumped", expected: str, folder: Path) -> None:
    from gemmill.numerics.recording import record
    from gemmill.runtime.library import Build
    from gemmill.wheel.reproducer import DATA, reproducer
    from gemmill.writing import write_whole

    assert variant.folder is not None  # its build was looked for
    try:
        recorded = record(Build(variant.folder), variant.name, call)
    except (ValueError, RuntimeError) as error:
        raise UsageError(str(error)) from None
    made = reproducer(variant.config, recorded, f"{call.op}: {call}", expected)
    for file in made.files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, file.text)
    write_whole(folder / DATA, made.data)
    (folder / "build.sh").chmod(0o755)


def _sizes_of(variant: variants.Variant, asked: dict[str, int]) -> "tuple[dict[str, int], TableRow | None]":
    """The sizes of the call, and the row of a tuned table that they come from.

    The row timed the variant at the requested sizes. Raises UsageError.
    """
    from gemmill.registry import REGISTRY

    own = {option.name: option.flags for option in REGISTRY.family_of(variant.config).questions if option.is_size}
    if foreign := [option.flags for option in _SIZES if option.name in asked and option.name not in own]:
        raise UsageError(f"{variant.name} with {foreign[0]}: its calls have no such size, leave it out")
    row = _measured(variant.name, variant.config.arch, asked)
    if row is None and len(asked) < len(own):
        raise UsageError(
            f"no tuned table has {variant.name} at such a shape: name one with {' and '.join(own.values())}"
        )
    return dict(row.sizes) if row is not None else asked, row


def _export_builds(build: str | None, out: Path, *, experimental: bool) -> None:
    from gemmill.cli.wheel import tell, to_ship
    from gemmill.wheel import write_hub_folder
    from gemmill.wheel.hub import OLDEST

    named = [variants.build_of(build)[0]] if build else []
    shipped = write_hub_folder(to_ship(named, experimental=experimental), out)
    tell(shipped, size(sum(path.stat().st_size for path in shipped.path.rglob("*") if path.is_file())))
    if shipped.abi.glibc > OLDEST:
        asks, may = (".".join(map(str, version)) for version in (shipped.abi.glibc, OLDEST))
        typer.echo(
            f"gemmill: it asks for glibc {asks}, and kernels of the Hub may ask for {may}: build on a machine with {may} "
            "before you publish it",
            err=True,
        )


def _measured(name: str, arch: str, asked: dict[str, int]) -> "TableRow | None":
    """The first row of a table that timed the variant, at the requested sizes."""
    from gemmill.runtime.tuned import find_tables

    rows = (row for _, table in find_tables(arch) for row in table.rows if name in row.variants)
    return next((row for row in rows if asked.items() <= row.sizes.items()), None)
