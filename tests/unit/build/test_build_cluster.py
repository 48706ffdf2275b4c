"""A build whose units are compiled by the workers of a Dask cluster."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

pytest.importorskip("distributed")

from distributed import LocalCluster

from gemmill.build import cluster, scheduler
from gemmill.build.driver import build
from gemmill.build.errors import BuildError
from gemmill.build.options import BuildOptions
from gemmill.build.scheduler import Scheduler

from .conftest import FakeToolkit


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0") as found:
        yield found.scheduler_address


def test_the_same_build_as_without(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Callable, address: str
) -> None:
    selection = make_selection(64, 128, 256)
    result = build(selection, replace(options, scheduler=Scheduler(address=address)))
    assert [entry.config for entry in result.manifest.entries] == list(selection.configs)
    assert len(toolkit.calls()) >= 1
    again = build(selection, options)
    assert again.reused and again.manifest.build_id == result.manifest.build_id


def test_a_home_that_workers_do_not_see_is_said(
    options: BuildOptions, make_selection: Callable, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        cluster, "compile_here", lambda folder, module, request: f"{folder} is not to be seen on a worker"
    )
    with pytest.raises(BuildError, match="is not to be seen on a worker"):
        build(make_selection(64), replace(options, scheduler=Scheduler(address=address)))


def test_a_request_that_is_not_there() -> None:
    text = cluster.compile_here("/none", "gemmill.build.compile_unit", "x.json")
    assert (
        text
        == "/none is not to be seen on a worker: the home (GEMMILL_HOME) must lie on a file system that workers share"
    )


def test_no_scheduler(options: BuildOptions, make_selection: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "CONNECT_SECONDS", 1)
    with pytest.raises(BuildError, match=r"no Dask scheduler answers at 'tcp://127\.0\.0\.1:9'"):
        build(make_selection(64), replace(options, scheduler=Scheduler(address="tcp://127.0.0.1:9")))
