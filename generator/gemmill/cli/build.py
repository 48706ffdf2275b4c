"""`gemmill build`: compile, link and publish."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmill.cli import options as o
from gemmill.cli import variants
from gemmill.cli.exits import ExitCode, UnavailableError, UsageError
from gemmill.cli.output import console, count, entries_table, families_table, rejected_lines, seconds, size
from gemmill.cli.plan import print_plan
from gemmill.vocab import Arch, cannot_emulate

if TYPE_CHECKING:
    from gemmill.build.options import BuildOptions, BuildResult
    from gemmill.manifest import Manifest
    from gemmill.space.selections import Selection

_MOST_LISTED = 100
"""The most variants that have a line each; of more, families have."""

EpilogueOption = Annotated[
    list[str] | None,
    typer.Option(
        "--epilogue",
        metavar="MODULE:FUNCTION",
        help="Compile the kernels of this epilogue of yours too; may be repeated.",
    ),
]
RetryOption = Annotated[bool, typer.Option("--retry-failed", help="Try variants again that did not compile before.")]
SchedulerOption = Annotated[
    str | None,
    typer.Option("--scheduler", metavar="ADDRESS", help="Compile on this Dask cluster; --home must be shared with it."),
]
EmulateOption = Annotated[
    bool,
    typer.Option(
        "--emulate", help="Emulate sm120f's instructions on an sm90a GPU; such a build serves only where it is named."
    ),
]
OwnHostCodeOption = Annotated[
    bool,
    typer.Option(
        "--own-host-code",
        help="Launch the CuTe DSL's kernels by gemmill's host code, and link nothing of the DSL; kernels that it cannot launch are left out.",
    ),
]
UseOption = Annotated[
    bool | None,
    typer.Option("--use/--no-use", help="Make the build current, or not; by default if it is as complete."),
]


def build(
    select: o.OwnSelectOption = None,
    arch: o.ArchOption = Arch.SM90A,
    filters: o.FilterOption = None,
    epilogues: EpilogueOption = None,
    jobs: o.JobsOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, compile nothing.")] = False,
    max_size: o.MaxSizeOption = None,
    retry_failed: RetryOption = False,
    scheduler: SchedulerOption = None,
    trust_network: o.TrustNetworkOption = False,
    emulate: EmulateOption = False,
    own_host_code: OwnHostCodeOption = False,
    use: UseOption = None,
    home: o.HomeOption = None,
) -> None:
    """Compile a selection of variants into an extension.

    The selection is default, or nvcc where the CuTe DSL is not installed. The extension and its manifest appear
    together below --home. Compiles only sources that are missing from the cache. Leaves out and lists a variant that
    does not compile (exit code 5). A build that fails, or that a signal kills, leaves the last good one in place. Needs
    no GPU.

    The build becomes the current one, which serves, if it is as complete as that one. That is the same selection
    without a filter, or as many variants. Otherwise the current one goes on serving, and the output has the command
    that changes that.

    Examples:

        gemmill build --select smoke

        gemmill build --arch sm_90a --filter epilogue=scaledbias --jobs 4

        gemmill build --select sweep --dry-run

        gemmill build --select smoke --epilogue my_epilogues:leaky

        gemmill build --arch sm120f --emulate
    """
    from gemmill.build.options import BuildOptions

    if emulate and arch.emulated_on is None:
        raise UsageError(cannot_emulate(arch))
    if emulate and use:
        raise UsageError("--use with --emulate: an emulated build serves only where it is named, leave --use out")
    selection = variants.selection_of(select or what_can_be_compiled(), arch, filters, epilogues)
    options = BuildOptions(
        jobs=jobs,
        max_size=max_size,
        home=home,
        retry_failed=retry_failed,
        scheduler=o.scheduler_of(scheduler, trust_network=trust_network),
        emulate=emulate,
        own_host_code=own_host_code,
    )
    if dry_run:
        _print_plan(selection, options, use)
        return
    result, served = publish(selection, options, filtered=bool(filters), wanted=use)
    _print_result(result, served)
    if result.rejected:
        raise typer.Exit(ExitCode.INCOMPLETE)


def _print_plan(selection: "Selection", options: "BuildOptions", use: bool | None) -> None:
    from gemmill.build.planning import plan as plan_build

    nothing = "nothing is compiled"
    o.refuse_beside("--dry-run", nothing, scheduler=options.scheduler)
    if use is not None:
        raise UsageError(f"--use or --no-use with --dry-run: {nothing}, leave it out")
    print_plan(selection, plan_build(selection, options), options.max_size, as_json=False)


def publish(
    selection: "Selection", options: "BuildOptions", *, filtered: bool = False, wanted: bool | None = None
) -> "tuple[BuildResult, str]":
    """Build a selection with a bar on stderr, decide whether it serves as `settle` does, and say that in a sentence.

    Raises UnavailableError without a toolchain, and BuildError.
    """
    from gemmill.build.driver import build as make
    from gemmill.build.errors import BuildError
    from gemmill.build.toolchain import find_toolchain
    from gemmill.cli.compiling import build_progress
    from gemmill.runtime.builds import settle

    try:
        find_toolchain()
    except BuildError as error:
        raise UnavailableError(str(error)) from None
    home = options.home_dir
    before = _serving(selection.arch, home)
    with build_progress(options.job_count) as observer:
        result = make(selection, options, observer)
    served = settle(result.folder, result.manifest, before, filtered=filtered, wanted=wanted, home=home)
    _let_tables_name_machine_code(home)
    return result, served


def _let_tables_name_machine_code(home: Path) -> None:
    """Carry the home's tuned rows over to builds that run the same machine code, whatever its sources."""
    paths = sorted((home / "tables").glob("*.json"))
    if not paths:
        return
    from gemmill.manifest import ManifestError, read_manifest
    from gemmill.runtime.builds import MANIFEST, find_builds
    from gemmill.runtime.table_file import TableError
    from gemmill.tuner.tables import note_machine_code

    builds = []
    for folder in find_builds(home):
        with suppress(ManifestError):  # a build that cannot be read has measured nothing that could be carried over
            builds.append(read_manifest(folder / MANIFEST))
    for path in paths:
        try:
            note_machine_code(path, builds)
        except (TableError, OSError) as error:
            typer.echo(f"gemmill: the machine code of measured kernels was not noted in {path}: {error}", err=True)


def what_can_be_compiled() -> str:
    """The selection to build where the command names none."""
    from gemmill.build.dsl import DISTRIBUTION, INSTALL, is_installed

    if is_installed():
        return "default"
    typer.echo(
        f"gemmill: {DISTRIBUTION} is not installed, so nvcc compiles selection nvcc; for default, {INSTALL}", err=True
    )
    return "nvcc"


def _serving(arch: Arch, home: Path) -> "Manifest | None":
    """The build that serves now; None where none can, so that the new build takes its place."""
    from gemmill.manifest import ManifestError
    from gemmill.runtime.builds import serving

    try:
        return serving(arch, home)[1]
    except ManifestError:
        return None


def _print_result(result: "BuildResult", served: str) -> None:
    manifest = result.manifest
    title = f"{count(len(manifest.entries), 'variant')} in build {manifest.build_id} for {manifest.made_for} ({size(manifest.extension_bytes)})"
    is_long = len(manifest.entries) > _MOST_LISTED
    console().print((families_table if is_long else entries_table)(title, manifest.entries))
    if is_long:
        typer.echo(f"`gemmill list --build {manifest.build_id}` lists each variant")
    how = "the same build was there" if result.reused else f"compiled in {seconds(result.compile_seconds)}"
    typer.echo(f"{how}: {result.folder}")
    typer.echo(f"gemmill: {served}", err=True)
    for line in rejected_lines(result.rejected):
        typer.echo(f"gemmill: not built: {line}", err=True)
    if result.remembered:
        again = "failed in an earlier build and was not tried again: --retry-failed tries it"
        typer.echo(f"gemmill: {count(result.remembered, 'variant')} of these {again}", err=True)
