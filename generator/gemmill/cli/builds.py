"""`gemmill builds`: the builds of this machine, and which one serves."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gemmill import __version__
from gemmill.cli import options as o
from gemmill.cli.output import console, count, is_narrow, print_json, size, table
from gemmill.cli.verbs import Group

if TYPE_CHECKING:
    from gemmill.manifest import OtherVersionError

T = TypeVar("T")
builds = typer.Typer(
    name="builds",
    cls=Group,
    help="Look at builds, choose which one serves, remove them.",
    rich_markup_mode=None,
    add_completion=False,
)


@dataclass(frozen=True, kw_only=True)
class _Listed:
    """A row of `gemmill builds list`."""

    build: str
    folder: Path
    serves: bool
    """Whether its architecture's calls use it, unless GEMMILL_BUILD names another."""
    arch: str = ""
    selection: str = ""
    variants: int = 0
    bytes: int = 0
    created: str = ""
    version: str = ""
    """Version of the gemmill that made the build; of a checkout with its commit, as 0.1.0+g1234567."""
    error: str = ""
    """Why the build cannot be read; empty where it can."""
    is_others: bool = False
    """Whether it cannot be read because another version made it."""

    emulated: bool = False
    """Whether it emulates its architecture, so that it serves only by name."""

    @property
    def commit(self) -> str:
        """Commit of the checkout that made the build, with a star where files were changed. It is empty without a checkout."""
        commit, _, changed = self.version.partition("+g")[2].partition(".")
        return commit + "*" * bool(changed)

    @property
    def state(self) -> str:
        """Whether the build serves, or why it cannot."""
        if self.is_others:
            release = self.version.partition("+")[0]
            return "other" if release == __version__ else f"of {release}"
        return "damaged" if self.error else "emulated" if self.emulated else "serves" * self.serves


@builds.command("list")
def list_builds(home: o.HomeOption = None, as_json: o.JsonOption = False) -> None:
    """List builds, the newest first, with the one that serves each architecture.

    Builds of a checkout have its commit. A build that another version or commit made in another form is listed with
    that version, or as other, and cannot serve.

    Examples:

        gemmill builds list

        gemmill builds list --json
    """
    from gemmill.runtime.builds import find_builds

    found = [_look(folder, home) for folder in find_builds(home)]
    if as_json:
        print_json(found)
        return
    _print_rows(found)
    for listed in found:
        if listed.error and not listed.is_others:
            typer.echo(f"gemmill: {listed.error}", err=True)
    if others := " ".join(listed.build for listed in found if listed.is_others):
        typer.echo(
            f"gemmill: this is gemmill {__version__}, which cannot read what another one made: `gemmill builds rm {others}` "
            "removes it, `gemmill build` makes a build that fits",
            err=True,
        )


def _print_rows(found: Sequence[_Listed]) -> None:
    """Print a line for each build. A narrow terminal has the part that all share once."""
    archs = {listed.arch for listed in found if listed.arch}
    is_shared = is_narrow() and len(archs) == 1
    columns = ["build", "arch", "set", "variants", "size", "made (UTC)", "commit", ""]
    rows = [
        (b.build, b.arch, b.selection, b.variants, size(b.bytes), b.created[:16].replace("T", " "), b.commit, b.state)
        for b in found
    ]
    if is_shared:
        columns, rows = columns[:1] + columns[2:], [row[:1] + row[2:] for row in rows]
    title = f"{count(len(rows), 'build')}{f' for {archs.pop()}' if is_shared else ''}"
    console().print(table(title, columns, rows, right=["variants", "size"]))


@builds.command("use")
def use_build(
    build: Annotated[str, typer.Argument(metavar="ID", help="The build's id.")], home: o.HomeOption = None
) -> None:
    """Make a build the current one of its architecture: processes that start afterwards load it.

    Examples:

        gemmill builds use 97cda050d7a3
    """
    from gemmill.runtime.builds import resolve, use

    manifest = use(resolve(build, home), home)
    typer.echo(
        f"build {manifest.build_id} serves {manifest.arch}: {count(len(manifest.entries), 'variant')} of {manifest.selection}"
    )


@builds.command("rm")
def remove_builds(
    named: Annotated[list[str], typer.Argument(metavar="ID...", help="The builds' ids.")],
    force: Annotated[bool, typer.Option("--force", help="Remove a build that serves, too.")] = False,
    home: o.HomeOption = None,
) -> None:
    """Remove builds. A process that uses one keeps it; compiled objects stay in the cache.

    Examples:

        gemmill builds rm 97cda050d7a3 f8045a55a83e
    """
    from gemmill.runtime.builds import remove, resolve

    for folder in [resolve(build, home) for build in named]:
        remove(folder, home, force=force)
        typer.echo(f"removed {folder}")


def _look(folder: Path, home: Path | None) -> _Listed:
    from gemmill.manifest import ManifestError, OtherVersionError
    from gemmill.runtime.builds import read_build, serving

    try:
        manifest = read_build(folder)
    except OtherVersionError as error:
        return _of_another_version(folder, error)
    except ManifestError as error:
        return _Listed(build=folder.name, folder=folder, serves=False, error=str(error))
    try:
        serves = serving(manifest.arch, home)[0] == folder
    except ManifestError:  # the current build is missing: nothing serves
        serves = False
    return _Listed(
        build=manifest.build_id,
        folder=folder,
        serves=serves,
        arch=manifest.arch,
        selection=manifest.selection,
        variants=len(manifest.entries),
        bytes=manifest.extension_bytes,
        created=manifest.created,
        version=manifest.gemmill_version,
        emulated=manifest.is_emulated,
    )


def _of_another_version(folder: Path, error: "OtherVersionError") -> _Listed:
    """A build of another version, as far as its fields agree with those of this one."""

    def told(name: str, kind: type[T]) -> T:
        value = error.data.get(name)
        return value if isinstance(value, kind) else kind()

    return _Listed(
        build=folder.name,
        folder=folder,
        serves=False,
        arch=told("arch", str),
        selection=told("selection", str),
        variants=len(told("entries", list)),
        bytes=told("extension_bytes", int),
        created=told("created", str),
        version=told("gemmill_version", str) or "another",
        error=str(error),
        is_others=True,
    )
