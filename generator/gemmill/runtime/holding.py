"""Requests for batch invariance, by the calling thread, else by the process; and how an extension learns of them."""

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator

from gemmill import settings
from gemmill.manifest import ManifestError
from gemmill.runtime.choosing import Trust
from gemmill.runtime.packed import PackedCall, PackedChoice

_NUMBER = ctypes.c_int64
_CHOOSE = ctypes.CFUNCTYPE(None, _NUMBER, ctypes.POINTER(PackedCall), _NUMBER, ctypes.POINTER(PackedChoice))
_ASK = ctypes.CFUNCTYPE(_NUMBER)
_AS_PROCESS = -1
"""Of a thread without a request of its own. Mirrored by kernels/extension/selection.h."""


class _Thread(threading.local):
    asks: bool | None = None


_thread = _Thread()
_everywhere = settings.batch_invariant()
_all: "weakref.WeakSet[Holding]" = weakref.WeakSet()


@contextlib.contextmanager
def batch_invariant(asked: bool = True) -> Iterator[None]:
    """Give rows the same bits whatever the batch, for ops that the calling thread calls inside the block.

    A row's result then depends on that row and the weights alone: not on the number of rows, its place among them, or its
    neighbours, NaN and infinities included. Each class of calls holds one order of sums along K for its sizes but the number
    of rows. Inside, an op raises RuntimeError for a call that no variant of such an order takes, or that the pinned variant would
    answer in another order. With `asked` False calls inside the block choose freely. Blocks nest; the innermost decides.
    Raises ManifestError where a loaded build is too old for it.
    """
    before = hold_here(asked)
    try:
        yield
    finally:
        hold_here(before)


def set_batch_invariant(asked: bool = True) -> None:
    """Ask for batch invariance, as `batch_invariant` does, in all threads that are in no block of it; also
    GEMMILL_BATCH_INVARIANT=1.

    Raises ManifestError, and changes nothing, where a loaded build is too old for it.
    """
    hold_everywhere(asked)


def holds_here() -> bool:
    """Whether calls of this thread hold one order."""
    return _everywhere if _thread.asks is None else _thread.asks


def holds_everywhere() -> bool:
    """Whether threads that do not say otherwise are under the contract."""
    return _everywhere


def hold_here(asks: bool | None) -> bool | None:
    """Let this thread ask for it or not, or leave it to the process (None). Returns its request before.

    Raises ManifestError, and changes nothing, where a loaded build is too old for it.
    """
    if asks:
        _check_all()
    before, _thread.asks = _thread.asks, asks
    for holding in list(_all):
        holding.tell_thread(asks)
    return before


def hold_everywhere(asks: bool) -> None:
    """Ask for it in all threads that do not say otherwise. Raises ManifestError as `hold_here`."""
    global _everywhere
    if asks:
        _check_all()
    _everywhere = asks
    for holding in list(_all):
        holding.tell_process(asks)


def _check_all() -> None:
    for holding in list(_all):
        holding.check()


class Holding:
    """The requests that one extension has received. It asks Python for each choice under the contract, and remembers
    the answer with the mode.
    """

    def __init__(
        self, library: ctypes.CDLL, choose: Callable[[int, PackedCall, int], tuple[int, Trust]], build_id: str
    ) -> None:
        """Raises ManifestError where the contract is in force, and the build is too old for it."""
        self._library, self._decide, self._build_id = library, choose, build_id
        self._is_able = hasattr(library, "gemmill_hold")
        if self._is_able:
            library.gemmill_hold.argtypes = library.gemmill_hold_everywhere.argtypes = [_NUMBER]
            # Kept: the extension calls them as long as the process lives.
            self._choose, self._ask = _CHOOSE(self._write_choice), _ASK(_asked_here)
            library.gemmill_set_holding(self._choose, self._ask)
            self.tell_process(_everywhere)
        elif holds_here():
            self.check()
        _all.add(self)

    def check(self) -> None:
        """Raise ManifestError for a build older than the contract."""
        if not self._is_able:
            raise ManifestError(
                f"build {self._build_id} cannot hold batch invariance, which is asked for: it is too old, make it again with "
                "`gemmill build`"
            )

    def tell_thread(self, asks: bool | None) -> None:
        """Pass on the request of the calling thread."""
        if self._is_able:
            self._library.gemmill_hold(_AS_PROCESS if asks is None else int(asks))

    def tell_process(self, asks: bool) -> None:
        """Pass on the request of other threads."""
        if self._is_able:
            self._library.gemmill_hold_everywhere(int(asks))

    def _write_choice(self, family: int, call: ctypes.Array, sm_count: int, choice: ctypes.Array) -> None:
        try:
            row, trust = self._decide(family, call[0], sm_count)
        except (
            Exception
        ):  # a callback must not raise: C++ is on the stack. No variant, and explain says which error it is.
            row, trust = -1, Trust.MODEL
        choice[0].row, choice[0].trust = row, trust.value


def _asked_here() -> int:
    """The request of a thread at its first call of an extension."""
    return _AS_PROCESS if _thread.asks is None else int(_thread.asks)
