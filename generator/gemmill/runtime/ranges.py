"""NVTX ranges around calls: a profile then shows op, sizes and variant of each."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gemmill.runtime.schemas import NAMESPACE, OpSchema
from gemmill.runtime.select import Choice

MOST_REMEMBERED = 4096
"""The most texts of ranges that the memo keeps."""


class Ranges:
    """A wrapper of calls that puts a range around each."""

    def __init__(self, explain: Callable[..., Choice], nvtx: Any = None) -> None:
        """`explain` says which variant a call gets, as `gemmill.explain` does; `nvtx` has range_push and range_pop."""
        self._explain = explain
        self._nvtx = nvtx or torch.cuda.nvtx
        self._texts: dict[tuple[Any, ...], str] = {}

    def around(self, op: OpSchema, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call of the op in a range."""

        def run(*args: Any) -> Any:
            self._nvtx.range_push(self._text(op, args))
            try:
                return call(*args)
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
