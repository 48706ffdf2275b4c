"""Wrappers around the calls of a namespace's ops, as settings ask for them. Without such a setting there is nothing in
between.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from gemmill.runtime.schemas import BY_NAME, NAMESPACE, OpSchema


class Wrapper(Protocol):
    """Does something before and after calls."""

    def around(self, op: OpSchema, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call of the op that makes `call` in between."""
        ...


class Around:
    """The ops of a namespace with wrappers around each call, the last outermost, until it ends. A call costs some
    microseconds more.
    """

    def __init__(self, namespace: str, build_id: str, wrappers: Sequence[Wrapper], key: str = "CUDA") -> None:
        self._library = torch.library.Library(namespace, "IMPL", key)
        of_build = getattr(torch.ops, f"{NAMESPACE}_{build_id}")
        here = [
            op for op in BY_NAME.values() if hasattr(of_build, op.name)
        ]  # a user's epilogue may be of another build
        for op in here:
            call = getattr(of_build, op.name).default
            for wrapper in wrappers:
                call = wrapper.around(op, call)
            self._library.impl(op.name, call, key, allow_override=True)

    def end(self) -> None:
        """Make calls without wrappers again."""
        self._library._destroy()
