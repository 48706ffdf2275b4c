"""A right call of every op with everything that it may be given, and autograd's view of it."""

from functools import cache
from typing import Any

import pytest
import torch

from gemmill.fuzz.breakages import draw_call
from gemmill.numerics.call import CPU_LIMITS, LegalCall
from gemmill.numerics.memory import Memory
from gemmill.numerics.values import Pools
from gemmill.runtime.schemas import OpSchema

Call = dict[str, Any]


def whole_call(op: OpSchema, device: torch.device | str = "cpu") -> Call:
    """The arguments by name, of a legal call that the fuzzer may make: each tensor is given and has values."""
    call = _drawn(op)
    memory = Memory(call.slots, torch.device("cpu"))
    Pools(torch.device("cpu")).fill(memory, call.offsets)
    given = {name: moved(memory.tensor(name), device) for name in call.slots}
    return {name: given[name] if name in given else call.plain.get(name) for name in op.arguments}


@cache
def _drawn(op: OpSchema) -> LegalCall:
    """The first call of as many tensors as one can have, with a tensor of bfloat16 where the op takes one, of whole 16 bytes, and of
    4 bits where formats have some: every build has variants for that."""
    calls = [draw_call(op.name, 1, index, CPU_LIMITS)[0] for index in range(500)]
    most = max(len(call.slots) for call in calls)
    whole = [call for call in calls if len(call.slots) == most and all(s.numel for s in call.slots.values())]
    return max(
        whole,
        key=lambda call: (
            torch.bfloat16 in {x.dtype for x in call.slots.values()},
            all(x.row_stride >= x.columns or x.column_stride >= x.rows for x in call.slots.values()),
            _is_aligned(call),
            str(call.plain.get("format", "")).count("4"),
            min((min(x.shape) for x in call.slots.values() if x.dtype.itemsize == 1 and len(x.shape) == 2), default=0),
        ),
    )


def _is_aligned(call: LegalCall) -> bool:
    matrices = [x for x in call.slots.values() if x.rows > 1 and x.dtype.itemsize < 4]
    lines = [
        (x.columns, x.row_stride, x.shift) if x.column_stride == 1 else (x.rows, x.column_stride, x.shift)
        for x in matrices
    ]
    return all(size * x.dtype.itemsize % 16 == 0 for x, sizes in zip(matrices, lines, strict=True) for size in sizes)


def moved(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """There with the same strides."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device).copy_(tensor)


def check_refusals(namespace: Any, op: OpSchema, device: torch.device | str = "cpu") -> None:
    """Each tensor that requires grad is refused by name while grad mode is enabled, before anything is written."""
    refused = 0
    for name, tensor in whole_call(op, device).items():
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            continue
        call = whole_call(op, device)
        call[name].requires_grad_()
        before = versions(call)
        with pytest.raises(RuntimeError) as caught:
            getattr(namespace, op.name).default(*call.values())
        assert str(caught.value) == (
            f"{op.name}: {name} requires grad while grad mode is enabled, and the op has no gradient: call it under "
            f"torch.no_grad(), or with {name}.detach()"
        )
        assert versions(call) == before
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                getattr(namespace, op.name).default(*call.values())
        refused += 1
    assert refused


def check_versions(namespace: Any, op: OpSchema, device: torch.device | str = "cpu") -> None:
    """A call counts as a write of the tensors that the schema says are written, once or more, and of no others."""
    call = whole_call(op, device)
    before = versions(call)
    getattr(namespace, op.name).default(*call.values())
    written = {parameter.name for parameter in op.parameters if parameter.written and parameter.name in before}
    assert {name for name, version in versions(call).items() if version != before[name]} == written


def versions(call: Call) -> dict[str, int]:
    """How often each tensor was written, as far as autograd knows."""
    return {name: value._version for name, value in call.items() if isinstance(value, torch.Tensor)}


def check_saved_tensors(namespace: Any, op: OpSchema, device: torch.device | str = "cpu") -> None:
    """A tensor that autograd saved for a gradient may not be overwritten unseen."""
    call = whole_call(op, device)
    name = next(p.name for p in op.parameters if p.written and call[p.name].dtype in (torch.float32, torch.bfloat16))
    weight = torch.ones((), dtype=call[name].dtype, requires_grad=True)
    product = weight * call[name]
    getattr(namespace, op.name).default(*call.values())
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        product.sum().backward()
