"""Broken calls: each is a legal one, with one thing wrong."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gemmill.family import Aspect, Check, Layout, Op
from gemmill.numerics.call import LegalCall, Limits
from gemmill.numerics.cases import cases_of_op
from gemmill.numerics.draw import Draw
from gemmill.numerics.layouts import SHIFTS
from gemmill.numerics.memory import Memory
from gemmill.registry import REGISTRY
from gemmill.runtime import checks, operands
from gemmill.runtime.schemas import BY_NAME, ArgumentKind, Parameter

BROKEN = 0.2
"""The share of broken calls."""
MOST_TRIES = 12
Arguments = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class BrokenCall:
    """Arguments that must be refused."""

    arguments: Arguments
    what: str
    """The fault of the arguments, in words."""
    sentence: str | None
    """The sentence of the checks. None where they have nothing against the arguments, though they should."""


def draw_call(name: str, seed: int, index: int, limits: Limits) -> tuple[LegalCall, Draw | None]:
    """The legal call of an op, a seed and an index. Where it is to be broken, the draws of its breakage come with it."""
    draw = Draw(name, seed, index)
    is_broken = draw.chance(BROKEN)
    call = shifted(cases_of_op(name).drawn(name, draw, limits), draw)
    return call, draw if is_broken else None


def shifted(call: LegalCall, draw: Draw) -> LegalCall:
    """The call, with tensors moved by a few elements that lay at aligned addresses: each that no kernel and no choice of
    one wants there."""
    family, op = REGISTRY.ops[call.op]
    wanted = {*family.tuning.aligned, *(x.role for x in op.tensors if x.alignment > 1)}
    free = [name for name in call.slots if op.roles.get(name, name) not in wanted and not call.slots[name].shift]
    moved = {name: replace(call.slots[name], shift=draw.one_of(SHIFTS)) for name in free if draw.chance(0.5)}
    return replace(call, slots={**call.slots, **moved})


Break = Callable[[Tensor, Memory, str, Draw], Tensor | None]


def _zeros(value: Tensor, *shape: int) -> Tensor:
    """Zeros of a tensor's dtype and device."""
    return torch.zeros(shape, device=value.device, dtype=torch.float32).to(value.dtype)


def _another_device(value: Tensor, *_: Any) -> Tensor:
    device = "cpu" if value.is_cuda else "meta"
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


def _one_longer(value: Tensor, _memory: Memory, _name: str, draw: Draw) -> Tensor | None:
    if not value.dim():
        return None
    shape = list(value.shape)
    shape[draw.below(len(shape))] += 1
    return _zeros(value, *shape)


def _one_shorter(value: Tensor, _memory: Memory, _name: str, draw: Draw) -> Tensor | None:
    dims = [i for i, size in enumerate(value.shape) if size]
    return value.narrow(dim := draw.one_of(dims), 0, value.shape[dim] - 1) if dims else None


def _two_dimensions_with_gaps(value: Tensor, *_: Any) -> Tensor | None:
    if value.numel() < 4 or value.numel() % 2:
        return None
    return _zeros(value, value.numel() // 2, 4)[:, :2]


def _within_an_element(value: Tensor, *_: Any) -> Tensor | None:
    if value.dtype.itemsize == 1 or value.is_cuda or not value.is_contiguous() or not value.numel():
        return None
    memory = bytearray(value.nbytes + value.dtype.itemsize)
    start = 1 - torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % value.dtype.itemsize
    return torch.frombuffer(memory, dtype=value.dtype, count=value.numel(), offset=max(start, 1)).view(value.shape)


def _with_gradient(value: Tensor, *_: Any) -> Tensor | None:
    return value.detach().requires_grad_() if value.dtype in (torch.bfloat16, torch.float16, torch.float32) else None


_OF_TENSORS: dict[str, Break] = {
    "is of another dtype": lambda value, *_: torch.zeros(value.shape, dtype=torch.float64, device=value.device),
    "is on another device": _another_device,
    "is one element longer": _one_longer,
    "is one element shorter": _one_shorter,
    "has one dimension more": lambda value, *_: value[None],
    "has no dimensions": lambda value, *_: _zeros(value),
    "has gaps between its elements": lambda value, *_: _zeros(value, *value.shape, 2)[..., 0],
    "is stored in the other order": lambda value, *_: (
        _zeros(value, *value.shape[::-1]).t() if value.dim() == 2 else None
    ),
    "has the same memory for all rows": lambda value, *_: (
        value[:1].expand(value.shape) if value.dim() and value.shape[0] else None
    ),
    "has two dimensions with gaps": _two_dimensions_with_gaps,
    "lies over another argument": lambda _, memory, name, draw: memory.over(
        name, draw.one_of([other for other in memory.slots if other != name])
    ),
    "begins within an element": _within_an_element,
    "requires a gradient": _with_gradient,
}


def _must_fail(what: str, op: Op, name: str) -> bool:
    """Whether no check may let the breakage pass, however the call is."""
    if what == "has two dimensions with gaps":
        role = op.roles.get(name, name)
        is_vector = any(
            x.role == role and x.layout in (Layout.VECTOR, Layout.VALUES) and x.shape != "1" for x in op.tensors
        )
        return is_vector and any(
            isinstance(step, Check) and step.aspect in (Aspect.LAYOUT, Aspect.WHOLE) and role in step.roles.split()
            for step in op.contract
        )
    return what in ("is of another dtype", "is on another device", "begins within an element", "requires a gradient")


def break_call(op: str, arguments: Arguments, memory: Memory, draw: Draw) -> BrokenCall | None:
    """The call with one argument broken. None where no breakage that it tried makes the call illegal."""
    schema, (_, declared) = BY_NAME[op], REGISTRY.ops[op]
    for _ in range(MOST_TRIES):
        parameter = draw.one_of(schema.parameters)
        name, value = parameter.name, arguments[parameter.name]
        what, certain = "", False
        if parameter.kind is not ArgumentKind.TENSOR:
            broken: Any = _plain(parameter, draw)
            what = f"{name} is {broken!r}"
            if broken == value:
                continue
        elif value is None:
            broken = torch.zeros(3, dtype=torch.float64, device=memory.bytes.device)
            what, certain = f"{name} is given", True
        else:
            kind = draw.one_of(tuple(_OF_TENSORS))
            broken = _OF_TENSORS[kind](value, memory, name, draw)
            what, certain = f"{name} {kind}", _must_fail(kind, declared, name)
            if broken is None:
                continue
        changed = arguments | {name: broken}
        sentence = _sentence(op, changed)
        if sentence is not None or certain:
            return BrokenCall(arguments=changed, what=what, sentence=sentence)
    return None


def _plain(parameter: Parameter, draw: Draw) -> Any:
    match parameter.kind:
        case ArgumentKind.INT:
            return draw.one_of((0, 1, 16, 48, 96, 256, -64, -1))
        case ArgumentKind.FLOAT:
            return draw.one_of((-1.0, 240.0, float("nan"), -448.5))
        case ArgumentKind.BOOL:
            return draw.chance(0.5)
        case ArgumentKind.TEXT:
            return draw.one_of(("relu", "none", "", "geluß", "SILU"))
        case _:
            return draw.one_of(((1,), (0, 4), (-1, -1), (3, 5), (1, 1, 1)))


def _sentence(op: str, arguments: Arguments) -> str | None:
    schema = BY_NAME[op]
    try:
        checks.check(schema, operands.of_arguments(schema, [arguments[name] for name in schema.arguments]))
    except RuntimeError as error:
        return str(error)
    return None
