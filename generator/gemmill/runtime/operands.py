"""Descriptions of calls, as they come from torch or from the extension."""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from gemmill.family.operand import DTYPE_CODES, Call, Operand, Value
from gemmill.runtime.schemas import ArgumentKind, OpSchema

_DTYPE_NAMES = {code: name for name, code in DTYPE_CODES.items()}
_DEVICE_TYPES = {0: "cpu", 1: "cuda"}


def of_tensor(tensor: torch.Tensor) -> Operand:
    """The description of a tensor."""
    return _described(tensor, int, data=tensor.data_ptr())


def of_arguments(op: OpSchema, arguments: Sequence[Any]) -> Call:
    """The call with these arguments, in the schema's order. Raises TypeError if their number is wrong or one is
    missing."""
    return _call(op, arguments, lambda value: of_tensor(value) if isinstance(value, torch.Tensor) else value)


def of_symbolic_arguments(op: OpSchema, arguments: Sequence[Any]) -> Call:
    """The call with arguments whose tensors have no memory, and whose sizes may be symbolic.

    It is good for sizes of results, not for checks.
    """

    def described(value: Any) -> Any:
        return _described(value, lambda size: size, data=0) if isinstance(value, torch.Tensor) else value

    return _call(op, arguments, described)


def of_fake_arguments(op: OpSchema, arguments: Sequence[Any]) -> Call | None:
    """The call with these arguments, whose tensors have no memory. None where a size has no value yet.

    A number that torch keeps symbolic has its value in the traced call. To compare it itself would put a guard into the
    compiled code, for a check that the op makes again whenever it runs.
    """

    def described(value: Any) -> Any:
        return _described(value, _value_of, data=0) if isinstance(value, torch.Tensor) else _value_of(value)

    try:
        return _call(op, arguments, described)
    except _UnknownError:
        return None


class _UnknownError(Exception):
    """A symbolic number has no value: it depends on data."""


def _value_of(number: Any) -> Any:
    if not isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
        return number
    if not number.node.has_hint():
        raise _UnknownError
    return number.node.hint


def _call(op: OpSchema, arguments: Sequence[Any], of: Callable[[Any], Any]) -> Call:
    call: Call = {}
    for parameter, value in zip(op.parameters, complete(op, arguments), strict=True):
        if value is None and not parameter.optional:
            raise TypeError(f"{op.name}: {parameter.name} is None, it must be a {parameter.kind.lower()}")
        call[parameter.name] = tuple(map(of, value)) if isinstance(value, list | tuple) else of(value)
    return call


def complete(op: OpSchema, arguments: Sequence[Any]) -> list[Any]:
    """The arguments, completed by the defaults of omitted ones at the end. Raises TypeError if their number is wrong."""
    rest = op.parameters[len(arguments) :]
    if len(arguments) > len(op.parameters) or any(parameter.required for parameter in rest):
        raise TypeError(
            f"{op.name} takes {len(op.arguments)} arguments ({', '.join(op.arguments)}), got {len(arguments)}"
        )
    return [*arguments, *(parameter.default for parameter in rest)]


def _described(tensor: torch.Tensor, value_of: Callable[[Any], int], *, data: int) -> Operand:
    return Operand(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(map(value_of, tensor.shape)),
        strides=tuple(map(value_of, tensor.stride())),
        device=_device_name(tensor.device.type, tensor.device.index),
        data=data,
        is_differentiated=tensor.requires_grad and torch.is_grad_enabled(),
    )


def of_facts(op: OpSchema, facts: Sequence[int]) -> Call:
    """The call as the extension reports it. kernels/extension/call.h has the order of the numbers."""
    numbers = iter(facts)
    return {parameter.name: _value(parameter.kind, numbers) for parameter in op.parameters}


def _value(kind: ArgumentKind, numbers: Iterator[int]) -> Value:
    first = next(numbers)
    match kind:
        case ArgumentKind.INT:
            return first
        case ArgumentKind.BOOL:
            return bool(first)
        case ArgumentKind.FLOAT:
            return float(struct.unpack("<d", struct.pack("<q", first))[0])
        case ArgumentKind.INTS:
            return tuple(next(numbers) for _ in range(next(numbers))) if first else None
        case ArgumentKind.TEXT:
            return bytes(next(numbers) for _ in range(first)).decode(errors="replace")
        case ArgumentKind.TENSORS:
            return tuple(_operand(numbers) for _ in range(first) if next(numbers))
        case ArgumentKind.TENSOR:
            return _operand(numbers) if first else None


def _operand(numbers: Iterator[int]) -> Operand:
    dtype, device_type, device, data, is_differentiated, rank = (next(numbers) for _ in range(6))
    shape = tuple(next(numbers) for _ in range(rank))
    strides = tuple(next(numbers) for _ in range(rank))
    return Operand(
        dtype=_DTYPE_NAMES.get(dtype, f"dtype {dtype}"),
        shape=shape,
        strides=strides,
        device=_device_name(_DEVICE_TYPES.get(device_type, f"device type {device_type}"), device),
        data=data,
        is_differentiated=bool(is_differentiated),
    )


def _device_name(kind: str, index: int | None) -> str:
    return f"{kind}:{index or 0}" if kind == "cuda" else kind
