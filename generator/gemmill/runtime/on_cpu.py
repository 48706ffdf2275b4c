"""The ops by their families' references, on tensors of any device: the CPU path, and the reference for kernels."""

from collections.abc import Sequence
from typing import Any

import torch

from gemmill.family import Dense, Judged
from gemmill.runtime import checks, operands
from gemmill.runtime.schemas import OpSchema
from gemmill.runtime.serving import serving_of


def by_reference(op: OpSchema, arguments: Sequence[Any]) -> Any:
    """Check a call like the op, write its results by the reference, and return the op's result.

    Raises RuntimeError as the op would.
    """
    given = operands.complete(op, arguments)
    call = checks.check(op, operands.of_arguments(op, given))
    made = allocated(call, given)
    for place, values in serving_of(op).results(call, dict(zip(call.roles, (*given, *made), strict=True))):
        place.copy_(values)
    return returned(made)


def allocated(call: Judged, given: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors that a call returns, without values, on the device of its first tensor."""
    return [_allocated(result, next(x for x in given if isinstance(x, torch.Tensor))) for result in call.results]


def _allocated(result: Dense, like: torch.Tensor) -> torch.Tensor:
    *leading, columns = result.shape
    dtype = getattr(torch, result.dtype)
    if result.is_column_major:
        return like.new_empty((*leading[:-1], columns, leading[-1]), dtype=dtype).transpose(-1, -2)
    return like.new_empty((*leading, columns), dtype=dtype)


def returned(made: Sequence[torch.Tensor]) -> Any:
    """Tensors in the form in which torch has an op return them."""
    return made[0] if len(made) == 1 else tuple(made) or None
