"""Where tasks run: in a measuring process of this machine's one GPU, or on the workers of a Dask cluster."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from gemmill.tuner.measure import OPEN_SECONDS, Task, measure
from gemmill.tuner.protocol import TuneError, WorkerSpec
from gemmill.tuner.sweep import Event, Executor, Found
from gemmill.tuner.worker import Worker, WorkerDied, WorkerError


class LocalExecutor(Executor):
    """One measuring process, one task after another: what one GPU needs, without a cluster around it."""

    def __init__(self, spec: WorkerSpec, program: str = "gemmill.tuner.bench") -> None:
        self._worker = Worker(spec, program)

    def facts(self) -> Mapping[str, Any]:
        """What the process runs on. Raises TuneError."""
        return facts_of(self._worker)

    def run(self, tasks: Sequence[Task], found: Found) -> Iterator[Event]:
        """Each outcome; faults are told as they are found."""
        if tasks:
            self._worker.ask("settle", OPEN_SECONDS)
        for task in tasks:
            yield task, measure(self._worker, task, partial(found, task.problem))

    def close(self) -> None:
        """End the process."""
        self._worker.close()


def facts_of(worker: Worker) -> Mapping[str, Any]:
    """What a measuring process runs on. Raises TuneError."""
    try:
        return dict(worker.ask("hello", OPEN_SECONDS))
    except (WorkerDied, WorkerError) as error:
        raise TuneError(f"the measuring process does not start: {error}") from None
