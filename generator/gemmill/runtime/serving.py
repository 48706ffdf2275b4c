"""What the runtime does for a family beside its contracts: the family hands it in."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from gemmill.family import Judged, ShapedCall
from gemmill.family.operand import Call
from gemmill.registry import REGISTRY
from gemmill.runtime.schemas import OpSchema
from gemmill.runtime.select import Choice

Result = tuple[torch.Tensor, torch.Tensor]
"""A part of a tensor that the op writes, and the values that it gets: of its shape, or of one that broadcasts to it."""

if TYPE_CHECKING:
    from gemmill.runtime.library import Build


@dataclass(frozen=True, kw_only=True)
class Serving:
    """How calls of a family's ops are computed without a kernel, and how their choice is told."""

    results: Callable[[Judged, dict[str, Any]], Iterable[Result]]
    """What the reference makes of a call that has passed the checks, and where it belongs; arguments are by role."""
    asked: Callable[[Judged], ShapedCall]
    """What the choice depends on, of a call that has passed the checks."""
    lacks: Callable[["Build", OpSchema, Call, Choice], str]
    """Why a build serves no such call, and what to do."""


def serving_of(op: OpSchema) -> Serving:
    """That of an op's family."""
    family, _ = REGISTRY.ops[op.name]
    found: Serving = import_module(family.serving).SERVING
    return found


def count_of_variants(count: int) -> str:
    """In words."""
    return f"{count} variant{'' if count == 1 else 's'}"
