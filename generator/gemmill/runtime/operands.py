"""What is known of a tensor argument without touching its data: enough to check a call and to choose a variant."""

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gemmill.runtime.schemas import Kind, OpSchema

_DEVICE_TYPES = {0: "cpu", 1: "cuda"}


@dataclass(frozen=True, kw_only=True)
class Operand:
    """One tensor argument. `dtype` is the name that torch gives it, without `torch.`."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str
    data: int
    """Address of the first element; 0 where there is none (fake tensors)."""
    is_differentiated: bool
    """Whether autograd would have to record the call for it: it requires grad, and grad mode is enabled."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def meaningful_strides(self) -> tuple[int, ...]:
        """The strides that are ever taken: of dimensions of more than one element, in a tensor that has any."""
        return tuple(s for n, s in zip(self.shape, self.strides, strict=True) if self.numel and n > 1)

    @property
    def element_bytes(self) -> int:
        """Size of an element."""
        return getattr(torch, self.dtype).itemsize

    @property
    def is_vector(self) -> bool:
        """Whether the elements lie behind one another along one dimension, whatever the strides of dimensions of one element."""
        longer = [stride for size, stride in zip(self.shape, self.strides, strict=True) if size > 1]
        return longer in ([], [1]) or not self.numel

    @property
    def span(self) -> int:
        """Elements from the first to the last that the strides reach, both counted."""
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) if self.numel else 0

    @property
    def end(self) -> int:
        """Address one past the last element that the strides reach."""
        return self.data + self.span * self.element_bytes


Value = Operand | int | float | bool | str | tuple[int, ...] | None
Call = dict[str, Any]
"""Arguments of one call by name, each a Value: an Operand for a tensor, None for what is optional and not given."""


def of_arguments(op: OpSchema, arguments: Sequence[Any]) -> Call:
    """The call with these arguments, in the schema's order. Raises TypeError if their number is wrong or one is missing."""
    call: Call = {}
    for parameter, value in zip(op.parameters, complete(op, arguments), strict=True):
        if value is None and not parameter.optional:
            raise TypeError(f"{op.name}: {parameter.name} is None, it must be a {parameter.kind.lower()}")
        call[parameter.name] = of_tensor(value) if isinstance(value, torch.Tensor) else value
    return call


def of_fake_arguments(op: OpSchema, arguments: Sequence[Any]) -> Call | None:
    """The call with these arguments, whose tensors have no memory. None where a size has no value yet.

    A number that torch keeps symbolic stands with the value that it has in the call that is traced: to compare it itself
    would put a guard into the compiled code, for a check that the op makes again whenever it runs.
    """
    try:
        return of_arguments(op, [_of_fake(value) for value in arguments])
    except _UnknownError:
        return None


class _UnknownError(Exception):
    """A symbolic number has no value: it depends on data."""


def _of_fake(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _described(value, _value_of, data=0)
    return type(value)(map(_value_of, value)) if isinstance(value, list | tuple) else _value_of(value)


def _value_of(number: Any) -> Any:
    if not isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
        return number
    if not number.node.has_hint():
        raise _UnknownError
    return number.node.hint


def complete(op: OpSchema, arguments: Sequence[Any]) -> list[Any]:
    """The arguments with defaults for those at the end that are not given. Raises TypeError if their number is wrong."""
    rest = op.parameters[len(arguments) :]
    if len(arguments) > len(op.parameters) or any(parameter.required for parameter in rest):
        raise TypeError(
            f"{op.name} takes {len(op.arguments)} arguments ({', '.join(op.arguments)}), got {len(arguments)}"
        )
    return [*arguments, *(parameter.default for parameter in rest)]


def of_tensor(tensor: torch.Tensor) -> Operand:
    """What is known of a tensor."""
    return _described(tensor, int, data=tensor.data_ptr())


def _described(tensor: torch.Tensor, value_of: Callable[[Any], int], *, data: int) -> Operand:
    return Operand(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(map(value_of, tensor.shape)),
        strides=tuple(map(value_of, tensor.stride())),
        device=_device_name(tensor.device.type, tensor.device.index),
        data=data,
        is_differentiated=tensor.requires_grad and torch.is_grad_enabled(),
    )


def of_facts(op: OpSchema, facts: Sequence[int], dtype_names: dict[int, str]) -> Call:
    """The call as the extension reports it: see kernels/extension/rejection.h for the order of the numbers."""
    numbers = iter(facts)
    return {parameter.name: _value(parameter.kind, numbers, dtype_names) for parameter in op.parameters}


def _value(kind: Kind, numbers: Iterator[int], dtype_names: dict[int, str]) -> Value:
    first = next(numbers)
    match kind:
        case Kind.INT:
            return first
        case Kind.BOOL:
            return bool(first)
        case Kind.FLOAT:
            return float(struct.unpack("<d", struct.pack("<q", first))[0])
        case Kind.INTS:
            return tuple(next(numbers) for _ in range(next(numbers))) if first else None
        case Kind.TEXT:
            return bytes(next(numbers) for _ in range(first)).decode(errors="replace")
        case Kind.TENSOR:
            return _operand(numbers, dtype_names) if first else None


def _operand(numbers: Iterator[int], dtype_names: dict[int, str]) -> Operand:
    dtype, device_type, device, data, is_differentiated, rank = (next(numbers) for _ in range(6))
    shape = tuple(next(numbers) for _ in range(rank))
    strides = tuple(next(numbers) for _ in range(rank))
    return Operand(
        dtype=dtype_names.get(dtype, f"dtype {dtype}"),
        shape=shape,
        strides=strides,
        device=_device_name(_DEVICE_TYPES.get(device_type, f"device type {device_type}"), device),
        data=data,
        is_differentiated=bool(is_differentiated),
    )


def _device_name(kind: str, index: int | None) -> str:
    return f"{kind}:{index or 0}" if kind == "cuda" else kind
