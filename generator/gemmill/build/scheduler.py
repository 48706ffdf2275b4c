"""The Dask scheduler of a cluster that compiles or measures.

A scheduler accepts code from anybody, and sends it on to its workers. So `gemmill` takes an address that only this
machine reaches, or whose certificates show who speaks. It takes any other only if the user says that everybody on its
network may run code.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import urlsplit

from gemmill.build.errors import BuildError

CONNECT_SECONDS = 30
_OWN = ("inproc",)
_WITH_CERTIFICATES = ("tls", "wss")
T = TypeVar("T")


class SchedulerError(BuildError):
    """A scheduler that cannot be used; the text is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Scheduler:
    """Where a cluster is. Raises SchedulerError for one that anybody on a network could use."""

    address: str
    trusts_network: bool = False
    """Whether everybody who can reach the address may run code there and, as the scheduler, here."""

    def __post_init__(self) -> None:
        if not (self.trusts_network or _is_guarded(self.address)):
            raise SchedulerError(
                f"--scheduler {self.address}: without TLS everybody who reaches this scheduler can run code on its workers and here; "
                "give scheduler and workers certificates and name it tls://HOST:PORT (docs/tuning.md says how), or add "
                "--trust-network if everybody on that network may"
            )

    def connect(self, how_to_start: str) -> Any:
        """A client of the scheduler. Raises SchedulerError where none answers; its text ends with `how_to_start`."""
        try:
            from distributed import Client, Security
        except ImportError:
            raise SchedulerError(
                "--scheduler needs Dask's package distributed: `pip install 'gemmill[tune]'`"
            ) from None
        if Security().require_encryption and _scheme(self.address) not in _OWN + _WITH_CERTIFICATES:  # type: ignore[no-untyped-call]
            raise SchedulerError(
                f"--scheduler {self.address}: Dask's configuration requires encryption (distributed.comm.require-encryption), "
                "which this address is without: name one that begins with tls://"
            )
        try:
            return Client(self.address, timeout=CONNECT_SECONDS)  # type: ignore[no-untyped-call]
        except TypeError:
            raise SchedulerError(
                f"Dask has no certificates for {self.address!r}: name them in its configuration, distributed.comm.tls "
                "(docs/tuning.md says how)"
            ) from None
        except (OSError, TimeoutError, ValueError) as error:
            raise SchedulerError(
                f"no Dask scheduler answers at {self.address!r} ({type(error).__name__}): {how_to_start}"
            ) from None


def gathered(client: Any, submitted: Mapping[Any, T]) -> Iterator[tuple[T, Any, Exception | None]]:
    """For each of a client's futures, as it ends: the submitted item, its result and its error.

    A caller that stops iterating cancels the rest.
    """
    from distributed import as_completed

    try:
        for future in as_completed(list(submitted)):  # type: ignore[no-untyped-call]
            result, failure = None, None
            try:
                result = future.result()  # which may be gone again, with the worker that had it
            except Exception as error:
                failure = error
            yield submitted[future], result, failure
    finally:
        client.cancel(list(submitted))


def _scheme(address: str) -> str:
    return address.rpartition("://")[0]


def _is_guarded(address: str) -> bool:
    if _scheme(address) in _OWN + _WITH_CERTIFICATES:
        return True
    try:
        host = urlsplit(f"//{address.rpartition('://')[2]}").hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
