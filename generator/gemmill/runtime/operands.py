"""What is known of a tensor argument without touching its data: enough to check a call and to choose a variant."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gemmill.runtime.schemas import OpSchema

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

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def element_bytes(self) -> int:
        """Size of an element."""
        return getattr(torch, self.dtype).itemsize

    @property
    def end(self) -> int:
        """Address one past the last element that the strides reach."""
        if not self.numel:
            return self.data
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.data + (last + 1) * self.element_bytes


Call = dict[str, Operand | None]
"""Arguments of one call by name; None for an optional one that is not given."""


def of_tensors(op: OpSchema, tensors: Sequence[torch.Tensor | None]) -> Call:
    """The call with these tensors, in the schema's order. Raises TypeError if their number is wrong or one is missing."""
    if len(tensors) != len(op.arguments):
        raise TypeError(f"{op.name} takes {len(op.arguments)} tensors ({', '.join(op.arguments)}), got {len(tensors)}")
    call: Call = {}
    for name, tensor in zip(op.arguments, tensors, strict=True):
        if tensor is None and name not in op.optional:
            raise TypeError(f"{op.name}: {name} is None, it must be a tensor")
        call[name] = None if tensor is None else of_tensor(tensor)
    return call


def of_tensor(tensor: torch.Tensor) -> Operand:
    """What is known of a tensor."""
    return Operand(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        device=_device_name(tensor.device.type, tensor.device.index),
        data=tensor.data_ptr(),
    )


def of_facts(op: OpSchema, facts: Sequence[int], dtype_names: dict[int, str]) -> Call:
    """The call as the extension reports it: see kernels/extension/rejection.h for the order of the numbers."""
    numbers = iter(facts)
    return {name: _operand(numbers, dtype_names) if next(numbers) else None for name in op.arguments}


def _operand(numbers: Iterator[int], dtype_names: dict[int, str]) -> Operand:
    dtype, device_type, device, data, rank = (next(numbers) for _ in range(5))
    shape = tuple(next(numbers) for _ in range(rank))
    strides = tuple(next(numbers) for _ in range(rank))
    return Operand(
        dtype=dtype_names.get(dtype, f"dtype {dtype}"),
        shape=shape,
        strides=strides,
        device=_device_name(_DEVICE_TYPES.get(device_type, f"device type {device_type}"), device),
        data=data,
    )


def _device_name(kind: str, index: int | None) -> str:
    return f"{kind}:{index or 0}" if kind == "cuda" else kind
