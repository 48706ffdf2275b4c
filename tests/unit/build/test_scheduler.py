"""Which addresses of a Dask scheduler are taken."""

import pytest

pytest.importorskip("distributed")

from gemmill.build.scheduler import Scheduler, SchedulerError


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:8786",
        "tcp://127.0.0.1:8786",
        "tcp://127.1.2.3:8786",
        "localhost:8786",
        "tcp://LOCALHOST:8786",
        "tcp://[::1]:8786",
        "inproc://192.0.2.1/1/1",
        "tls://192.0.2.1:8786",
        "tls://head.example:8786",
        "wss://head.example:8786",
    ],
)
def test_addresses_that_strangers_do_not_reach(address: str) -> None:
    assert Scheduler(address=address).address == address


@pytest.mark.parametrize(
    "address",
    [
        "192.0.2.1:8786",
        "tcp://192.0.2.1:8786",
        "tcp://0.0.0.0:8786",
        "tcp://head.example:8786",
        "tcp://localhost.example:8786",
        "tcp://localhost@192.0.2.1:8786",
        "tcp://127.0.0.1@192.0.2.1:8786",
        "ucx://192.0.2.1:8786",
        "ws://192.0.2.1:8786",
        "tcp://[2001:db8::1]:8786",
        "tcp://[::1",
        ":8786",
        "",
    ],
)
def test_addresses_without_tls_need_trust(address: str) -> None:
    with pytest.raises(SchedulerError) as caught:
        Scheduler(address=address)
    assert str(caught.value) == (
        f"--scheduler {address}: without TLS everybody who reaches this scheduler can run code on its workers and here; give "
        "scheduler and workers certificates and name it tls://HOST:PORT (docs/tuning.md says how), or add --trust-network if "
        "everybody on that network may"
    )
    assert Scheduler(address=address, trusts_network=True).trusts_network


def test_tls_without_certificates_is_said() -> None:
    with pytest.raises(
        SchedulerError,
        match=r"^Dask has no certificates for 'tls://127\.0\.0\.1:9': name them in its configuration, distributed\.comm\.tls",
    ):
        Scheduler(address="tls://127.0.0.1:9").connect("start one")


@pytest.mark.parametrize("verb", [("tune", "--dry-run", "--model", "llama-3-8b"), ("build", "--select", "smoke")])
def test_verbs_refuse_an_open_scheduler(gemmill, verb: tuple[str, ...]) -> None:
    outcome = gemmill(*verb, "--scheduler", "tcp://192.0.2.1:8786")
    assert outcome.code == 2
    assert outcome.err.startswith("gemmill: --scheduler tcp://192.0.2.1:8786: without TLS everybody who reaches")
