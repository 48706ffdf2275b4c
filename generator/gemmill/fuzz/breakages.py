"""Broken calls: a legal one, with one thing wrong."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gemmill.family import Layout, Op
from gemmill.numerics.draw import Draw
from gemmill.numerics.memory import Memory
from gemmill.registry import REGISTRY
from gemmill.runtime import checks, operands
from gemmill.runtime.schemas import BY_NAME, Kind, Parameter

MOST_TRIES = 12
Arguments = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class BrokenCall:
    """Arguments that must be refused."""

    arguments: Arguments
    what: str
    """What is wrong with them, in words."""
    sentence: str | None
    """What the checks say; None where they have nothing against it, though they should."""


Break = Callable[[Tensor, Memory, str, Draw], Tensor | None]


def _another_dtype(value: Tensor, _memory: Memory, _name: str, _draw: Draw) -> Tensor:
    return torch.zeros(value.shape, dtype=torch.float64, device=value.device)


def _another_device(value: Tensor, _memory: Memory, _name: str, _draw: Draw) -> Tensor:
    return torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device="cpu" if value.is_cuda else "meta"
    )


def _one_longer(value: Tensor, _memory: Memory, _name: str, draw: Draw) -> Tensor | None:
    if not value.dim():
        return None
    shape = list(value.shape)
    shape[draw.below(len(shape))] += 1
    return torch.zeros(shape, device=value.device).to(value.dtype)


def _one_shorter(value: Tensor, _memory: Memory, _name: str, draw: Draw) -> Tensor | None:
    dims = [i for i, size in enumerate(value.shape) if size]
    return value.narrow(dim := draw.one_of(dims), 0, value.shape[dim] - 1) if dims else None


def _more_dimensions(value: Tensor, _memory: Memory, _name: str, _draw: Draw) -> Tensor:
    return value[None]


def _no_dimensions(value: Tensor, _memory: Memory, _name: str, _draw: Draw) -> Tensor:
    return torch.zeros((), device=value.device).to(value.dtype)


def _gaps(value: Tensor, _memory: Memory, _name: str, _draw: Draw) -> Tensor:
    return torch.zeros((*value.shape, 2), device=value.device).to(value.dtype)[..., 0]


def _other_order(value: Tensor, _memory: Memory, _name: str, _draw: Draw) -> Tensor | None:
    if value.dim() != 2:
        return None
    return torch.zeros(value.shape[::-1], device=value.device).to(value.dtype).t()


def _same_row_for_all(value: Tensor, _memory: Memory, _name: str, _draw: Draw) -> Tensor | None:
    return value[:1].expand(value.shape) if value.dim() and value.shape[0] else None


def _two_dimensions_with_gaps(value: Tensor, _memory: Memory, _name: str, _draw: Draw) -> Tensor | None:
    if value.numel() < 4 or value.numel() % 2:
        return None
    return torch.zeros((value.numel() // 2, 4), device=value.device).to(value.dtype)[:, :2]


def _over_another(value: Tensor, memory: Memory, name: str, draw: Draw) -> Tensor | None:
    others = [other for other in memory.slots if other != name]
    return memory.over(name, draw.one_of(others))


def _with_gradient(value: Tensor, _memory: Memory, _name: str, _draw: Draw) -> Tensor | None:
    return value.detach().requires_grad_() if value.dtype in (torch.bfloat16, torch.float16, torch.float32) else None


_OF_TENSORS: dict[str, Break] = {
    "is of another dtype": _another_dtype,
    "is on another device": _another_device,
    "is one element longer": _one_longer,
    "is one element shorter": _one_shorter,
    "has one dimension more": _more_dimensions,
    "has no dimensions": _no_dimensions,
    "has gaps between its elements": _gaps,
    "is stored in the other order": _other_order,
    "has the same memory for all rows": _same_row_for_all,
    "has two dimensions with gaps": _two_dimensions_with_gaps,
    "lies over another argument": _over_another,
    "requires a gradient": _with_gradient,
}


def _must_fail(what: str, op: Op, name: str) -> bool:
    """Whether no check may let it pass, however the call is."""
    if what == "has two dimensions with gaps":
        role = op.roles.get(name, name)
        return any(x.role == role and x.layout in (Layout.VECTOR, Layout.VALUES) and x.shape != "1" for x in op.tensors)
    return what in ("is of another dtype", "is on another device", "requires a gradient")


def break_call(op: str, arguments: Arguments, memory: Memory, draw: Draw) -> BrokenCall | None:
    """The call with one argument broken; None where nothing that was tried is wrong with it."""
    schema, (_, declared) = BY_NAME[op], REGISTRY.ops[op]
    for _ in range(MOST_TRIES):
        parameter = draw.one_of(schema.parameters)
        name, value = parameter.name, arguments[parameter.name]
        what, certain = "", False
        if parameter.kind is not Kind.TENSOR:
            broken: Any = _plain(parameter, draw)
            what = f"{name} is {broken!r}"
            if broken == value:
                continue
        elif value is None:
            broken, what, certain = (
                torch.zeros(3, dtype=torch.float64, device=memory.bytes.device),
                f"{name} is given",
                True,
            )
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
        case Kind.INT:
            return draw.one_of((0, 1, 16, 48, 96, 256, -64, -1))
        case Kind.FLOAT:
            return draw.one_of((-1.0, 240.0, float("nan"), -448.5))
        case Kind.BOOL:
            return draw.chance(0.5)
        case Kind.TEXT:
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
