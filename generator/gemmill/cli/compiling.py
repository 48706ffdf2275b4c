"""The display of a build while it runs: a bar of estimated CPU seconds with the time left, and a line for each failure."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from gemmill.cli.output import console, seconds

if TYPE_CHECKING:
    from gemmill.build.options import BuildResult


class ProgressObserver:
    """Draws a bar of estimated CPU seconds with the time left. Where stderr is no terminal, it prints a line for each unit."""

    def __init__(self, progress: Progress, jobs: int) -> None:
        self._progress = progress
        self._jobs = jobs
        self._task = progress.add_task("looking for compiled objects", total=None, finish=None)
        self._total = self._completed = 0.0
        self._units = 0
        self._begun = monotonic()

    def started(self, total_weight: float) -> None:
        """Set the length of the bar, in estimated CPU seconds. A unit that is split adds to it."""
        if not self._total:
            self._begun = monotonic()
        self._total = total_weight
        self._update()

    def unit_done(self, label: str, weight: float, ok: bool) -> None:
        """Advance the bar by the unit's estimated CPU seconds, and keep a line for a failure."""
        self._units += 1
        self._completed += weight
        self._update()
        if not ok:
            self._progress.console.print(f"did not compile: {label}")
        elif not self._progress.console.is_terminal:
            self._progress.console.print(f"compiled {label}, about {seconds(self._left)} left")

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
    """Estimated seconds of wall time to the end.

    `total` and `completed` count estimated CPU seconds, `elapsed` the wall time so far, in seconds. The units in flight
    count as half done: there are `jobs` of them, and one of them has just ended.
    """
    if not units or not elapsed:
        return total / jobs
    done = completed + (jobs - 1) * completed / units / 2
    return max(0.0, total - done) * elapsed / done


class _TimeLeft(ProgressColumn):
    """A column that counts down to the estimated end, also between units, whose ends may be minutes apart."""

    def render(self, task: Task) -> Text:
        finish = task.fields.get("finish")
        return Text("" if finish is None else f"{seconds(max(0.0, finish - monotonic()))} left")


@contextmanager
def build_progress(jobs: int) -> Iterator[ProgressObserver]:
    """A display for the length of a build."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), _TimeLeft())
    shown = console(stderr=True)
    with Progress(*columns, console=shown, disable=not shown.is_terminal) as progress:
        yield ProgressObserver(progress, jobs)
