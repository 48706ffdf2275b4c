"""Where tasks run on this machine: in a measuring process for each of its GPUs."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from gemmill import settings
from gemmill.tuner.measure import OPEN_SECONDS, Task, measure
from gemmill.tuner.protocol import TuneError, WorkerSpec
from gemmill.tuner.sweep import Event, Executor, Found
from gemmill.tuner.worker import Worker, WorkerDied, WorkerError


class LocalExecutor(Executor):
    """A measuring process for each device, which takes one task after another: no cluster around them."""

    def __init__(
        self, spec: WorkerSpec, program: str = "gemmill.tuner.bench", devices: Sequence[str | None] = (None,)
    ) -> None:
        """`devices` as CUDA_VISIBLE_DEVICES names them; None leaves a process all devices of this one."""
        self._workers = [Worker(spec, program, device) for device in devices]

    def facts(self) -> Mapping[str, Any]:
        """The device of the first process; all start at the same time. Raises TuneError."""
        with ThreadPoolExecutor(len(self._workers)) as pool:
            first, *_ = pool.map(facts_of, self._workers)
        return first

    def run(self, tasks: Sequence[Task], found: Found) -> Iterator[Event]:
        """The outcomes in the order in which they come. Calls `found` for each fault at once, in this thread."""
        waiting: SimpleQueue[Task] = SimpleQueue()
        told: SimpleQueue[partial[None] | Event | BaseException] = SimpleQueue()
        for task in tasks:
            waiting.put(task)
        with ThreadPoolExecutor(len(self._workers)) as pool:
            for worker in self._workers[: len(tasks)]:
                pool.submit(_serve, worker, waiting, told, found)
            try:
                left = len(tasks)
                while left:
                    news = told.get()
                    if isinstance(news, BaseException):
                        raise news
                    if isinstance(news, partial):
                        news()
                        continue
                    left -= 1
                    yield news
            finally:
                _drain(waiting)  # an interrupted run waits for the tasks under way, not for all

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.close()


def _serve(
    worker: Worker,
    waiting: "SimpleQueue[Task]",
    told: "SimpleQueue[partial[None] | Event | BaseException]",
    found: Found,
) -> None:
    """Measure tasks until none waits; the thread that runs the sweep gets each result."""

    def fault(task: Task, *what: Any) -> None:
        told.put(partial(found, task.workload, *what))

    try:
        worker.ask("settle", OPEN_SECONDS)
        while True:
            task = waiting.get_nowait()
            told.put((task, measure(worker, task, partial(fault, task))))
    except Empty:
        return
    except BaseException as error:
        told.put(error)


def _drain(waiting: "SimpleQueue[Task]") -> None:
    try:
        while True:
            waiting.get_nowait()
    except Empty:
        return


def facts_of(worker: Worker) -> Mapping[str, Any]:
    """The device that a measuring process runs on. Raises TuneError."""
    try:
        return dict(worker.ask("hello", OPEN_SECONDS))
    except (WorkerDied, WorkerError) as error:
        raise TuneError(f"the measuring process does not start: {error}") from None


def visible_device(index: int) -> str:
    """The index-th of the GPUs that this process may use, by its name for another process."""
    visible = settings.visible_devices()
    return visible[index] if visible else str(index)
