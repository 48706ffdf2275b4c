"""Tasks on a Dask cluster that is there already, with one worker for each GPU.

A task requires the resource GPU=1. Its Dask worker keeps a measuring process, which may be killed without the worker
noticing. The tasks of a lost worker run again, each alone; the scheduler gives up one that takes another worker down
with it.
"""

import atexit
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from distributed import Client, Future, as_completed
from distributed.scheduler import KilledWorker

from gemmill.build.scheduler import Scheduler, SchedulerError, gathered
from gemmill.manifest import ManifestError
from gemmill.runtime.builds import MANIFEST, resolve
from gemmill.tuner.executors import facts_of
from gemmill.tuner.measure import OPEN_SECONDS, Task, TaskOutcome, measure
from gemmill.tuner.protocol import PEER, TuneError, WorkerSpec
from gemmill.tuner.sweep import Event, Executor, Found, TaskLost
from gemmill.tuner.worker import Worker

RESOURCES = {"GPU": 1}
_workers: dict[WorkerSpec, Worker] = {}


class ClusterExecutor(Executor):
    """Runs tasks on the workers of a Dask cluster."""

    def __init__(self, spec: WorkerSpec, client: Client) -> None:
        self._spec = spec
        self._client = client
        self._starting: list[Future] = []

    def facts(self) -> Mapping[str, Any]:
        """The device of the first worker that answers. Raises TuneError.

        It asks all, so that their measuring processes start at the same time, and not each when its first task comes.
        """
        self._starting = [
            self._client.submit(facts_here, self._spec, pure=False, resources=RESOURCES, workers=[address])
            for address in addresses_with_gpu(self._client)
        ]
        return dict(next(as_completed(self._starting)).result())

    def run(self, tasks: Sequence[Task], found: Found) -> Iterator[Event]:
        """The outcomes in the order in which they come, and faults with them."""
        again = []
        for task, outcome, error in self._gather(tasks):
            if isinstance(error, KilledWorker):
                again.append(task)
            else:
                yield _event(task, outcome, error)
        # Dask blames all tasks that a lost worker had: alone, each shows whether it was the one.
        for suspect in again:
            for task, outcome, error in self._gather([suspect]):
                yield _event(task, outcome, error)

    def _gather(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, TaskOutcome | None, Exception | None]]:
        submitted = {
            self._client.submit(measure_here, self._spec, task, pure=False, resources=RESOURCES): task for task in tasks
        }
        yield from gathered(self._client, submitted)

    def close(self) -> None:
        """Leave the cluster, which goes on."""
        self._client.close()


def connect(spec: WorkerSpec, scheduler: Scheduler) -> ClusterExecutor:
    """An existing cluster. Raises TuneError with one sentence where there is none, or none of its workers has a GPU."""
    try:
        client = scheduler.connect(
            "start one with `dask scheduler`, and a worker for each GPU with `dask worker ADDRESS --nworkers 1 --nthreads 1 "
            "--no-dashboard --resources GPU=1`"
        )
    except SchedulerError as error:
        raise TuneError(str(error)) from None
    if not addresses_with_gpu(client):
        count = len(client.scheduler_info(n_workers=-1)["workers"])
        client.close()
        raise TuneError(
            f"none of the {count} workers at {scheduler.address} has the resource GPU: start them with `dask worker {scheduler.address} "
            "--nthreads 1 --resources GPU=1`, one for each GPU"
        )
    return ClusterExecutor(spec, client)


def addresses_with_gpu(client: Client) -> list[str]:
    """The addresses of the workers that have the resource GPU."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return [address for address, worker in workers.items() if worker.get("resources", {}).get("GPU")]


def measure_here(spec: WorkerSpec, task: Task) -> TaskOutcome:
    """Measure a task in this Dask worker's own measuring process."""
    found = _here(spec)
    folders = dict(zip(spec.builds, found.builds, strict=True))
    candidates = tuple(
        replace(c, build=c.build if c.build == PEER else folders.get(c.build, c.build)) for c in task.candidates
    )
    outcome = measure(_worker(found), replace(task, candidates=candidates))
    named = {c.name: c.build for c in task.candidates}
    return replace(outcome, builds={name: named[name] for name in outcome.builds})


def facts_here(spec: WorkerSpec) -> Mapping[str, Any]:
    """The device that this Dask worker's measuring process runs on."""
    return facts_of(_worker(_here(spec)))


def _here(spec: WorkerSpec) -> WorkerSpec:
    """The spec with the builds' folders on this machine. They are the same paths, or else builds of the same ids in
    its own home.
    """
    folders = []
    for text in spec.builds:
        folder = Path(text)
        try:
            folders.append(str(folder if (folder / MANIFEST).is_file() else resolve(folder.name)))
        except ManifestError as error:
            raise TuneError(
                f"{error}; workers need the builds in their own GEMMILL_HOME, or on a shared file system"
            ) from None
    return replace(spec, builds=tuple(folders))


def _worker(spec: WorkerSpec) -> Worker:
    if spec not in _workers:
        for other in list(_workers):  # of an earlier wave: its process holds memory of the GPU
            _workers.pop(other).close()
        _workers[spec] = Worker(spec)
        atexit.register(_workers[spec].close)
        _workers[spec].ask("settle", OPEN_SECONDS)
    return _workers[spec]


def _event(task: Task, outcome: TaskOutcome | None, error: BaseException | None) -> Event:
    if isinstance(error, KilledWorker):
        return task, TaskLost("its worker was lost, also when it ran alone")
    if error is not None:
        return task, TaskLost(f"{type(error).__name__}: {error}")
    return task, outcome or TaskLost("it gave no result")
