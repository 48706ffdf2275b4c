"""`gemmill wheel`: runtime and builds in one file for pip."""

from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import options as o
from gemmill.cli.output import count, size
from gemmill.manifest import ManifestError
from gemmill.vocab import Arch


def wheel(
    named: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BUILD]...", help="Ids or paths; by default the build that serves each architecture."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the wheel is written.")] = Path(
        "dist"
    ),
    home: o.HomeOption = None,
) -> None:
    """Write a wheel with runtime, builds and tables.

    `pip install` of it needs Python 3.11 and torch: no compiler, no CUDA toolkit, no generator. Builds of several
    architectures lie side by side. What the binaries ask of a machine is audited first and named by the wheel's tag.

    Examples:

        gemmill wheel

        gemmill wheel 97cda050d7a3 --out wheels
    """
    from gemmill.runtime.builds import resolve
    from gemmill.wheel import write_wheel

    folders = [resolve(build, home) for build in named] if named else _serving(home)
    written = write_wheel(folders, out)
    builds = ", ".join(f"{m.build_id} for {m.arch}" for m in written.manifests)
    typer.echo(f"{written.path} ({size(written.path.stat().st_size)}): {builds}")
    if written.dsl_variants:
        typer.echo(
            f"gemmill: the wheel has {count(written.dsl_variants, 'variant')} of the CuTe DSL, whose licence names no library "
            "that may be distributed: read THIRD_PARTY.md before you give it to others",
            err=True,
        )


def _serving(home: Path | None) -> list[Path]:
    """The build that serves each architecture that has one. Raises ManifestError where none has."""
    from gemmill.runtime.builds import serving

    found = []
    for arch in Arch:
        try:
            found.append(serving(arch, home)[0])
        except ManifestError:
            continue
    return found or [serving(None, home)[0]]
