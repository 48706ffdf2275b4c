"""The display of a sweep while it runs: a bar with the time left, the latest result, and a line for each fault."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gemmill.cli.output import console, count

if TYPE_CHECKING:
    from gemmill.tuner.checking import Finding
    from gemmill.tuner.choice import Decision
    from gemmill.tuner.record import Entry
    from gemmill.tuner.workloads import Workload


class ProgressObserver:
    """Draws a bar on a terminal. Where stderr is none, it prints a line for each workload."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("planning", total=None)
        self._faults = self._lost = self._replaced = 0

    def planned(self, total: int, done: int) -> None:
        """Set how many workloads the sweep has, and how many of them are done."""
        self._progress.update(self._task, total=total, completed=done, description="measuring")
        if done:
            self._print(f"{done} of {count(total, 'workload')} known from the journal")

    def fault(self, workload: "Workload", name: str, finding: "Finding") -> None:
        """Count a variant's fault, and print a line for it."""
        self._faults += 1
        self._print(f"{workload}: {finding.fault}: {name}")
        self._describe("")

    def measured(self, entry: "Entry", decision: "Decision | None") -> None:
        """Advance the bar by a workload, and print its result."""
        workload = entry.outcome.workload
        if decision is None:
            text = f"{workload}: {entry.outcome.error or 'no variant takes it'}"
        else:
            change = ", replaces today's" if decision.replaces else ""
            text = f"{workload}: {decision.us[decision.chosen]:.2f} us{change}"
            self._replaced += decision.replaces
        self._progress.advance(self._task)
        if not self._progress.console.is_terminal:
            self._print(text)
        self._describe(text)

    def lost(self, workload: "Workload", reason: str) -> None:
        """Count a workload that could not be measured, and print a line for it."""
        self._lost += 1
        self._print(f"{workload}: lost: {reason}")

    def _describe(self, text: str) -> None:
        parts = [text, f"{self._replaced} better", count(self._faults, "fault")]
        self._progress.update(self._task, description=" | ".join(part for part in parts if part))

    def _print(self, text: str) -> None:
        self._progress.console.print(text)


@contextmanager
def sweep_progress() -> Iterator[ProgressObserver]:
    """A display for the length of a sweep."""
    columns = (
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    shown = console(stderr=True)
    with Progress(*columns, console=shown, disable=not shown.is_terminal) as progress:
        yield ProgressObserver(progress)
