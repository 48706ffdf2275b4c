"""A Dask cluster that speaks TLS, as docs/tuning.md says how to configure it: who is let in, and who is not."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import pytest

pytest.importorskip("distributed")

import dask.config
import yaml
from distributed import LocalCluster
from distributed.security import Security

from gemmill.build import scheduler
from gemmill.build.scheduler import Scheduler, SchedulerError
from gemmill.space.selections import select
from gemmill.tuner.cluster import connect
from gemmill.tuner.program import TuneRequest, stand_in_build, tune
from gemmill.tuner.sweep import SweepOptions
from gemms import MeasuredOp, gemm

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
DOCS = Path(__file__).resolve().parents[3] / "docs" / "tuning.md"


@contextmanager
def configured(folder: Path) -> Iterator[None]:
    """With the configuration that docs/tuning.md has users write, and the certificates in `folder`."""
    (text,) = re.findall(r"^    distributed:\n(?:     .*\n)+", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    written = yaml.safe_load(text.replace("/path", str(folder)))
    before = deepcopy(dask.config.config)
    dask.config.update(dask.config.config, written)
    try:
        yield
    finally:
        dask.config.config.clear()
        dask.config.config.update(before)


def certificates(folder: Path) -> Path:
    """An authority and one certificate of it, by openssl."""
    folder.mkdir()

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *new, "-subj", "/CN=authority", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *new, "-subj", "/CN=gemmill", "-keyout", "key.pem", "-out", "cert.csr")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
    openssl("x509", "-req", "-in", "cert.csr", *signed, "-out", "cert.pem")
    return folder


def request_of(tmp_path: Path) -> TuneRequest:
    return TuneRequest(
        workloads=[gemm(op=MeasuredOp.FP8, m=16, n=64, k=128)],
        builds=[stand_in_build(select("smoke"))],
        options=SweepOptions(rounds=2),
        journal=tmp_path / "sweep.jsonl",
        dry_run=True,
    )


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def address(ours: Path) -> Iterator[str]:
    with configured(ours):
        security = Security()
    options = {
        "n_workers": 1,
        "threads_per_worker": 1,
        "dashboard_address": None,
        "processes": False,
        "resources": {"GPU": 1},
    }
    with LocalCluster(protocol="tls", host="127.0.0.1", security=security, **options) as found:
        yield found.scheduler_address


def test_the_configuration_of_the_docs_lets_its_owner_in(ours: Path, address: str) -> None:
    assert address.startswith("tls://127.0.0.1:")
    with configured(ours), Scheduler(address=address).connect("start one") as client:
        assert client.submit(sum, (1, 2)).result() == 3


def test_certificates_of_another_authority_are_not_let_in(address: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(scheduler, "CONNECT_SECONDS", 2)
    strangers = certificates(tmp_path / "strangers")
    with configured(strangers), pytest.raises(SchedulerError) as caught:
        Scheduler(address=address).connect("start one")
    assert str(caught.value).startswith(f"no Dask scheduler answers at {address!r} (")


def test_who_speaks_without_tls_is_not_let_in(ours: Path, address: str, monkeypatch) -> None:
    monkeypatch.setattr(scheduler, "CONNECT_SECONDS", 2)
    plain = address.replace("tls://", "tcp://")
    with pytest.raises(SchedulerError, match=re.escape(f"no Dask scheduler answers at {plain!r} (")):
        Scheduler(address=plain).connect("start one")


def test_an_address_without_tls_is_not_spoken_to_where_encryption_is_required(ours: Path) -> None:
    """So a slip of the address sends nothing in the clear."""
    with configured(ours), pytest.raises(SchedulerError) as caught:
        Scheduler(address="127.0.0.1:9").connect("start one")
    assert str(caught.value) == (
        "--scheduler 127.0.0.1:9: Dask's configuration requires encryption (distributed.comm.require-encryption), which this "
        "address is without: name one that begins with tls://"
    )


def test_a_sweep_on_such_a_cluster(ours: Path, address: str, tmp_path: Path, home: Path) -> None:
    there = Scheduler(address=address)
    with configured(ours):
        result = tune(request_of(tmp_path), executor_of=lambda spec: connect(spec, there))
    assert len(result.record.entries) == 1
