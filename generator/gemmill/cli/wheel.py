"""`gemmill wheel`: builds in files for pip."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmill.cli import options as o
from gemmill.cli.exits import UsageError
from gemmill.cli.output import count, size
from gemmill.vocab import Arch

if TYPE_CHECKING:
    from gemmill.wheel import Shipped


ExperimentalOption = Annotated[
    bool,
    typer.Option("--experimental", help="Also builds for architectures whose kernels no GPU has run."),
]


def wheel(
    named: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BUILD]...", help="Ids or paths; by default the build that serves each architecture."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the wheel is written.")] = Path(
        "dist"
    ),
    kernels: Annotated[
        bool,
        typer.Option(
            "--kernels", help="Each build alone, as gemmill-sm90a-cu13, to install next to gemmill's own wheel."
        ),
    ] = False,
    experimental: ExperimentalOption = False,
    home: o.HomeOption = None,
) -> None:
    """Write a wheel of gemmill with builds, or of a build alone.

    A wheel with all in one is for your own machines: builds of several architectures lie side by side in it. A wheel of
    --kernels has one build, gemmill's version, and gemmill of that version as a requirement. `pip install` of either
    needs Python 3.11 and torch: no compiler and no CUDA toolkit. The command first audits the requirements of the
    binaries on a machine; the wheel's tag names them.

    Examples:

        gemmill wheel

        gemmill wheel --kernels

        gemmill wheel 97cda050d7a3 --out wheels
    """
    from gemmill.runtime.builds import resolve
    from gemmill.wheel import write_kernels, write_wheel

    folders = to_ship([resolve(build, home) for build in named or ()], home, experimental=experimental)
    for shipped in [write_kernels(folder, out) for folder in folders] if kernels else [write_wheel(folders, out)]:
        tell(shipped, size(shipped.path.stat().st_size))


def tell(shipped: "Shipped", how_large: str) -> None:
    """Print the files written, and whose licences to read before giving them to others."""
    builds = ", ".join(f"{manifest.build_id} for {manifest.arch}" for manifest in shipped.manifests)
    typer.echo(f"{shipped.path} ({how_large}): {builds}")
    if shipped.dsl_variants:
        typer.echo(
            f"gemmill: it has {count(shipped.dsl_variants, 'variant')} of the CuTe DSL, whose licence names no library "
            "that may be distributed: read THIRD_PARTY.md before you give it to others",
            err=True,
        )


def to_ship(named: list[Path], home: Path | None = None, *, experimental: bool) -> list[Path]:
    """The builds to give away: those that the command names, or those that serve. Kernels that have run on no GPU stay
    unless `experimental`.

    Raises UsageError for a named build that stays, and ManifestError.
    """
    from gemmill.manifest import read_manifest

    folders = named or serving_builds(home)
    archs = {folder: Arch(read_manifest(folder / "manifest.json").arch) for folder in folders}
    never_run = [folder for folder in folders if not archs[folder].has_run]
    if experimental or not never_run:
        return folders
    left = ", ".join(f"{folder.name} for {archs[folder]}" for folder in never_run)
    if named or len(never_run) == len(folders):
        raise UsageError(f"no GPU has run the kernels of {left}: add --experimental to ship them all the same")
    typer.echo(f"gemmill: left out: {left}, whose kernels no GPU has run; --experimental adds them", err=True)
    return [folder for folder in folders if archs[folder].has_run]


def serving_builds(home: Path | None = None) -> list[Path]:
    """The builds that serve, one for each architecture that has one. Raises ManifestError where none has."""
    from gemmill.manifest import ManifestError
    from gemmill.runtime.builds import serving

    found = []
    for arch in Arch:
        try:
            found.append(serving(arch, home)[0])
        except ManifestError:
            continue
    return found or [serving(None, home)[0]]
