"""Where tasks run: in a measuring process of this machine's one GPU, or on the workers of a Dask cluster."""

from collections.abc import Iterator, Mapping, Sequence
from queue import Queue
from threading import Thread
from typing import Any

from gemmill.tune.checking import Finding
from gemmill.tune.measure import OPEN_SECONDS, Outcome, Task, measure
from gemmill.tune.protocol import TuneError, WorkerSpec
from gemmill.tune.sweep import TaskLost
from gemmill.tune.worker import Worker, WorkerDied, WorkerError

Event = tuple[Task, Outcome | TaskLost | None, dict[str, Finding]]


class LocalExecutor:
    """One measuring process, one task after another: what one GPU needs, without a cluster around it."""

    def __init__(self, spec: WorkerSpec, program: str = "gemmill.tune.bench") -> None:
        self._worker = Worker(spec, program)

    def facts(self) -> Mapping[str, Any]:
        """What the process runs on. Raises TuneError."""
        return facts_of(self._worker)

    def run(self, tasks: Sequence[Task]) -> Iterator[Event]:
        """Faults as they are found, then each outcome."""
        if tasks:
            self._worker.ask("settle", OPEN_SECONDS)
        for task in tasks:
            yield from self._measure(task)

    def _measure(self, task: Task) -> Iterator[Event]:
        """Measures in a thread, so that faults are passed on as they are found."""
        events: Queue[Event | BaseException] = Queue()

        def work() -> None:
            try:
                found = measure(self._worker, task, lambda name, finding: events.put((task, None, {name: finding})))
                events.put((task, found, {}))
            except BaseException as error:
                events.put(error)

        thread = Thread(target=work, name="gemmill-measuring", daemon=True)
        thread.start()
        while True:
            event = events.get()
            if isinstance(event, BaseException):
                raise event
            yield event
            if event[1] is not None:
                thread.join()
                return

    def close(self) -> None:
        """End the process."""
        self._worker.close()

    def __enter__(self) -> "LocalExecutor":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def facts_of(worker: Worker) -> Mapping[str, Any]:
    """What a measuring process runs on. Raises TuneError."""
    try:
        return dict(worker.ask("hello", OPEN_SECONDS))
    except (WorkerDied, WorkerError) as error:
        raise TuneError(f"the measuring process does not start: {error}") from None
