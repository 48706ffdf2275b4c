"""The ops by their families' references, on tensors of any device: the CPU path, and what kernels are held against."""

from collections.abc import Sequence
from typing import Any

from gemmill.runtime import checks, operands
from gemmill.runtime.schemas import OpSchema
from gemmill.runtime.serving import serving_of


def by_reference(op: OpSchema, arguments: Sequence[Any]) -> None:
    """Check a call like the op and write its results by the reference. Raises RuntimeError as the op would."""
    given = operands.complete(op, arguments)
    call = checks.check(op, operands.of_arguments(op, given))
    for place, values in serving_of(op).results(call, dict(zip(call.roles, given, strict=True))):
        place.copy_(values)
