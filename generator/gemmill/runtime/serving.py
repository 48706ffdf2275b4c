"""What the runtime does for a family beside its contracts: the family hands it in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gemmill.family import ProblemCall
from gemmill.family.operand import Call
from gemmill.registry import REGISTRY
from gemmill.runtime.schemas import OpSchema
from gemmill.runtime.select import Choice

if TYPE_CHECKING:
    from gemmill.runtime.library import Build


@dataclass(frozen=True, kw_only=True)
class Serving:
    """How calls of a family's ops are computed without a kernel, and how their choice is told."""

    on_cpu: Callable[[OpSchema, Sequence[Any]], None]
    """Check a call and write its results by the reference. Raises RuntimeError as the op would."""
    asked: Callable[[OpSchema, Call], ProblemCall]
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
