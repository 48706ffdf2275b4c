"""The same sweep on a Dask cluster of this machine, with lost workers."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from distributed import Client, LocalCluster, wait

from gemmill.build import scheduler
from gemmill.build.scheduler import Scheduler
from gemmill.space.selections import select
from gemmill.tuner import cluster
from gemmill.tuner.cluster import ClusterExecutor, connect
from gemmill.tuner.measure import Task, TaskOutcome
from gemmill.tuner.program import TuneRequest, stand_in_build, tune
from gemmill.tuner.protocol import WorkerSpec
from gemmill.tuner.sweep import SweepOptions, TaskLost
from gemms import MeasuredOp, gemm

WORKLOADS = [gemm(op=MeasuredOp.FP8, m=m, n=64, k=128) for m in (1, 16, 64)]
DRY = WorkerSpec(builds=(), dry_run=True)


def request_of(tmp_path: Path, name: str) -> TuneRequest:
    return TuneRequest(
        workloads=WORKLOADS,
        builds=[stand_in_build(select("smoke"))],
        options=SweepOptions(rounds=2),
        journal=tmp_path / f"{name}.jsonl",
        dry_run=True,
    )


@contextmanager
def cluster_of_two() -> Iterator[LocalCluster]:
    """Two workers with a GPU each, as their user starts them."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "resources": {"GPU": 1}}
    options |= {"scheduler_kwargs": {"allowed_failures": 0}, "silence_logs": 50}
    with LocalCluster(**options) as found:
        yield found


def connected(found: LocalCluster, spec: WorkerSpec) -> ClusterExecutor:
    return connect(spec, Scheduler(address=found.scheduler_address))


def test_processes_start_together_and_results_do_not_depend_on_where_tasks_run(tmp_path, home) -> None:
    """A GPU whose process starts with its first task is idle as long as half of a small sweep takes."""
    alone = tune(request_of(tmp_path, "alone"))
    with cluster_of_two() as workers:
        with connected(workers, DRY) as executor:
            executor.facts()
            wait(executor._starting, timeout=120)
            started = executor._client.run(lambda: [worker.starts for worker in cluster._workers.values()])
        assert sorted(started.values()) == [[1], [1]]
        together = tune(request_of(tmp_path, "together"), executor_of=lambda spec: connected(workers, DRY))
    rows = [[(row.key, row.variants, row.us) for row in result.tables[0][1].rows] for result in (alone, together)]
    assert rows[0] == rows[1] and len(rows[0]) == 3


def test_a_lost_worker_loses_its_task_only(tmp_path, monkeypatch) -> None:
    def die_once(spec: WorkerSpec, task: Task) -> TaskOutcome:
        """Takes its Dask worker with it the first time that M = 16 is measured, and every time that M = 64 is."""
        marker = Path(spec.vllm_library or "") / str(task.workload.step)
        if task.workload.step == 64 or (task.workload.step == 16 and not marker.exists()):
            marker.touch()
            os._exit(1)
        return TaskOutcome(workload=task.workload, rounds_us={}, findings={})

    monkeypatch.setattr(cluster, "measure_here", die_once)
    spec = WorkerSpec(builds=(), dry_run=True, vllm_library=str(tmp_path))
    tasks = [Task(workload=workload, candidates=(), kept=None, stages=()) for workload in WORKLOADS]
    with cluster_of_two() as workers, connected(workers, spec) as executor:
        found = {task.workload.step: outcome for task, outcome in executor.run(tasks, lambda *fault: None)}
    assert isinstance(found[1], TaskOutcome) and isinstance(found[16], TaskOutcome), "given to another worker"
    assert isinstance(found[64], TaskLost) and str(found[64]) == "its worker was lost, also when it ran alone"


def test_a_scheduler_that_is_not_there(monkeypatch) -> None:
    monkeypatch.setattr(scheduler, "CONNECT_SECONDS", 1)
    with pytest.raises(
        RuntimeError, match=r"no Dask scheduler answers at 'tcp://127\.0\.0\.1:9' .*start one with `dask scheduler`"
    ):
        connect(DRY, Scheduler(address="tcp://127.0.0.1:9"))


def test_an_existing_cluster_needs_workers_with_gpus() -> None:
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with (
        LocalCluster(processes=False, **options) as found,
        pytest.raises(
            RuntimeError, match=re.escape(f"none of the 1 workers at {found.scheduler_address} has the resource")
        ),
    ):
        connect(DRY, Scheduler(address=found.scheduler_address))


def test_an_existing_cluster(tmp_path, home) -> None:
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None, "resources": {"GPU": 1}}
    with LocalCluster(processes=False, **options) as found:
        there = Scheduler(address=found.scheduler_address)
        result = tune(request_of(tmp_path, "existing"), executor_of=lambda spec: connect(spec, there))
        assert Client(found).status == "running", "it is not ours to close"
    assert len(result.record.entries) == 3


def test_a_build_that_workers_lack(home) -> None:
    spec = WorkerSpec(builds=("/none/0123abcd4567",))
    with pytest.raises(
        RuntimeError, match="workers need the builds in their own GEMMILL_HOME, or on a shared file system"
    ):
        cluster.facts_here(spec)
