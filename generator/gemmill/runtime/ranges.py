"""NVTX ranges around calls: a profile then shows op, sizes and variant of each."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gemmill.runtime.schemas import BY_NAME, NAMESPACE, OpSchema
from gemmill.runtime.select import Choice

MOST_REMEMBERED = 4096
"""The most texts of ranges that are remembered."""


class Ranges:
    """The ops of a namespace with a range around each call, as long as it is not ended. A call costs some microseconds
    more."""

    def __init__(
        self, namespace: str, build_id: str, explain: Callable[..., Choice], key: str = "CUDA", nvtx: Any = None
    ) -> None:
        """`explain` says which variant a call gets, as `gemmill.explain` does; `nvtx` has range_push and range_pop."""
        self._explain = explain
        self._nvtx = nvtx or torch.cuda.nvtx
        self._texts: dict[tuple[Any, ...], str] = {}
        self._library = torch.library.Library(namespace, "IMPL", key)
        of_build = getattr(torch.ops, f"{NAMESPACE}_{build_id}")
        here = [
            op for op in BY_NAME.values() if hasattr(of_build, op.name)
        ]  # a user's epilogue may be of another build
        for op in here:
            self._library.impl(op.name, self._around(op, getattr(of_build, op.name).default), key, allow_override=True)

    def end(self) -> None:
        """End the ranges of calls."""
        self._library._destroy()

    def _around(self, op: OpSchema, call: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            self._nvtx.range_push(self._text(op, args))
            try:
                call(*args)
            finally:
                self._nvtx.range_pop()

        return run

    def _text(self, op: OpSchema, args: Sequence[Any]) -> str:
        key = (op.name, *map(_facts, args))
        if key not in self._texts:
            if len(self._texts) >= MOST_REMEMBERED:
                self._texts.clear()
            self._texts[key] = f"{NAMESPACE}::{op.name} {self._told(op, args)}"
        return self._texts[key]

    def _told(self, op: OpSchema, args: Sequence[Any]) -> str:
        shapes = " ".join("x".join(map(str, arg.shape)) for arg in args[:3] if isinstance(arg, torch.Tensor))
        try:
            choice = self._explain(op.name, *args)
        except RuntimeError:  # which the op is about to raise itself
            return shapes
        return f"{shapes} {choice.entry.name}" if choice.entry else shapes


def _facts(arg: Any) -> Any:
    """The facts of an argument that a choice may depend on."""
    if isinstance(arg, torch.Tensor):
        return arg.shape, arg.stride(), arg.dtype, arg.device, arg.data_ptr() % 16
    return tuple(arg) if isinstance(arg, list) else arg
