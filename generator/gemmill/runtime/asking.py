"""The arguments of an op in a call of it, or of the function that allocates its results."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gemmill.registry import REGISTRY
from gemmill.runtime.schemas import NAMESPACE, ArgumentKind, OpSchema, Parameter


def given_to(op: OpSchema, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """The op's arguments, in its schema's order. Raises TypeError where neither op nor function takes these arguments."""
    if (bound := _bound(op, args, named)) is not None:
        return bound
    function = _function(op)
    takes = f"{op.name} takes ({', '.join(op.arguments)})"
    if function is None:
        raise TypeError(f"{takes}, got {_told(args, named)}")
    try:
        inspect.signature(function).bind(*args, **named)
    except TypeError:
        own = ", ".join(inspect.signature(function).parameters)
        raise TypeError(f"{takes}, or as a function ({own}); got {_told(args, named)}") from None
    with _Asking(op) as asking:
        function(*args, **named)
    return asking.given


class _Asking(TorchDispatchMode):
    """The mode that notes an op's arguments, instead of running it."""

    def __init__(self, op: OpSchema) -> None:
        super().__init__()
        self._op = getattr(getattr(torch.ops, NAMESPACE), op.name).default
        self.given: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Note an op's arguments, as torch calls it for each op."""
        if func is not self._op:
            return func(*args, **(kwargs or {}))
        self.given = list(args)
        return None


def _bound(op: OpSchema, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any] | None:
    """The arguments in order, with defaults; None where they are not the op's."""
    if len(args) > len(op.parameters):
        return None
    by_name = dict(zip(op.arguments, args, strict=False))
    if by_name.keys() & named.keys() or not named.keys() <= set(op.arguments):
        return None
    by_name |= named
    if not all(_fits(p, by_name[p.name]) if p.name in by_name else not p.required for p in op.parameters):
        return None
    return [by_name.get(p.name, p.default) for p in op.parameters]


def _fits(parameter: Parameter, value: Any) -> bool:
    if parameter.kind is ArgumentKind.TENSOR:
        return value is None or isinstance(value, torch.Tensor)
    return not isinstance(value, torch.Tensor | torch.dtype)


def _function(op: OpSchema) -> Callable[..., Any] | None:
    """The public function of the op's name."""
    module = REGISTRY.ops[op.name][0].functions
    return getattr(import_module(module), op.name, None) if module is not None else None


def _told(args: Sequence[Any], named: Mapping[str, Any]) -> str:
    names = f" and {', '.join(named)}" if named else ""
    return f"{len(args)} argument{'s' * (len(args) != 1)}{names}"
