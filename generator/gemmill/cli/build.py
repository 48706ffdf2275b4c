"""`gemmill build`: compile, link and publish."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from gemmill.cli import options as o
from gemmill.cli import variants
from gemmill.cli.exits import ExitCode, UnavailableError, UsageError
from gemmill.cli.output import console, count, entries_table, rejected_lines, seconds, size
from gemmill.cli.plan import print_plan
from gemmill.vocab import Arch

if TYPE_CHECKING:
    from gemmill.build.options import BuildResult
    from gemmill.manifest import Manifest


def build(
    select: o.SelectOption = "default",
    arch: o.ArchOption = Arch.SM90A,
    filters: o.FilterOption = None,
    jobs: o.JobsOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, compile nothing.")] = False,
    max_size: o.MaxSizeOption = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try variants again that did not compile before.")
    ] = False,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler", metavar="ADDRESS", help="Compile on this Dask cluster; --home must be shared with it."
        ),
    ] = None,
    trust_network: o.TrustNetworkOption = False,
    use: Annotated[
        bool | None,
        typer.Option("--use/--no-use", help="Make the build current, or not; by default if it is as complete."),
    ] = None,
    home: o.HomeOption = None,
) -> None:
    """Compile a selection into an extension.

    The extension and its manifest appear together below --home. Compiles only what is not in the cache. A variant that does not compile is left out and listed (exit code 5). A
    build that fails or is killed leaves the last good one in place. Needs no GPU.

    The build becomes the current one, which serves, if it is as complete as that one: the same selection without a filter,
    or as many variants. Otherwise the current one goes on serving, and the command that changes that is printed.

    Examples:

        gemmill build --select smoke

        gemmill build --arch sm_90a --filter epilogue=scaledbias --jobs 4

        gemmill build --select sweep --dry-run
    """
    from gemmill.build.driver import build as make
    from gemmill.build.errors import BuildError
    from gemmill.build.options import BuildOptions
    from gemmill.build.planning import plan as plan_build
    from gemmill.build.toolchain import find_toolchain
    from gemmill.runtime.builds import settle

    selection = variants.selection_of(select, arch, filters)
    options = BuildOptions(
        jobs=jobs,
        max_size=max_size,
        home=home,
        retry_failed=retry_failed,
        scheduler=o.scheduler_of(scheduler, trust_network=trust_network),
    )
    if dry_run:
        nothing = "nothing is compiled"
        o.refuse_beside("--dry-run", nothing, scheduler=scheduler)
        if use is not None:
            raise UsageError(f"--use or --no-use with --dry-run: {nothing}, leave it out")
        print_plan(selection, plan_build(selection, options), max_size, as_json=False)
        return
    try:
        find_toolchain()
    except BuildError as error:
        raise UnavailableError(str(error)) from None
    before = _serving(arch, options.home_dir)
    with _progress(options.job_count) as observer:
        result = make(selection, options, observer)
    home = options.home_dir
    served = settle(result.folder, result.manifest, before, filtered=bool(filters), wanted=use, home=home)
    _print_result(result, served)
    if result.rejected:
        raise typer.Exit(ExitCode.INCOMPLETE)


def _serving(arch: Arch, home: Path) -> "Manifest | None":
    """What serves now; None where nothing can, so that what is made takes its place."""
    from gemmill.manifest import ManifestError
    from gemmill.runtime.builds import serving

    try:
        return serving(arch, home)[1]
    except ManifestError:
        return None


class ProgressObserver:
    """Draws a bar of estimated CPU seconds with the time left; where stderr is no terminal, a line for each unit."""

    def __init__(self, progress: Progress, jobs: int) -> None:
        self._progress = progress
        self._jobs = jobs
        self._task = progress.add_task("looking for what is compiled already", total=None, finish=None)
        self._total = self._completed = 0.0
        self._units = 0
        self._begun = monotonic()

    def started(self, total_weight: float) -> None:
        """Set the whole; a unit that is split adds to it."""
        if not self._total:
            self._begun = monotonic()
        self._total = total_weight
        self._update()

    def unit_done(self, label: str, weight: float, ok: bool) -> None:
        """Advance, and keep a line for what failed."""
        self._units += 1
        self._completed += weight
        self._update()
        if not ok:
            self._progress.console.print(f"did not compile: {label}", markup=False)
        elif not self._progress.console.is_terminal:
            self._progress.console.print(f"compiled {label}, about {seconds(self._left)} left", markup=False)

    def linking(self) -> None:
        """All objects are there."""
        self._progress.update(self._task, description="linking")

    def finished(self, result: "BuildResult") -> None:
        """Fill the bar: estimates are rarely met to the second."""
        total = self._total or 1.0
        self._progress.update(self._task, total=total, completed=total, description="built", finish=None)

    @property
    def _left(self) -> float:
        return seconds_left(self._total, self._completed, self._units, monotonic() - self._begun, self._jobs)

    def _update(self) -> None:
        told = {"total": self._total, "completed": self._completed, "finish": monotonic() + self._left}
        self._progress.update(self._task, description="compiling", **told)


def seconds_left(total: float, completed: float, units: int, elapsed: float, jobs: int) -> float:
    """Estimated wall time to the end, from estimated CPU seconds and what they have come to so far.

    The units in flight count as half done: there are `jobs` of them, and one of them has just ended.
    """
    if not units or not elapsed:
        return total / jobs
    done = completed + (jobs - 1) * completed / units / 2
    return max(0.0, total - done) * elapsed / done


class _TimeLeft(ProgressColumn):
    """Counts down to the estimated end between units, which may be minutes apart."""

    def render(self, task: Task) -> Text:
        finish = task.fields.get("finish")
        return Text("" if finish is None else f"{seconds(max(0.0, finish - monotonic()))} left")


@contextmanager
def _progress(jobs: int) -> Iterator[ProgressObserver]:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), _TimeLeft())
    with Progress(*columns, console=console(stderr=True)) as progress:
        yield ProgressObserver(progress, jobs)


def _print_result(result: "BuildResult", served: str) -> None:
    manifest = result.manifest
    title = f"{count(len(manifest.entries), 'variant')} in build {manifest.build_id} for {manifest.arch} ({size(manifest.extension_bytes)})"
    console().print(entries_table(title, manifest.entries))
    how = "the same build was there" if result.reused else f"compiled in {seconds(result.compile_seconds)}"
    typer.echo(f"{how}: {result.folder}")
    typer.echo(f"gemmill: {served}", err=True)
    for line in rejected_lines(result.rejected):
        typer.echo(f"gemmill: not built: {line}", err=True)
    if result.remembered:
        again = "failed in an earlier build and was not tried again: --retry-failed tries it"
        typer.echo(f"gemmill: {count(result.remembered, 'variant')} of these {again}", err=True)
