"""Sizes of a function's results, from arguments that no contract has checked yet.

A size that an argument does not have is zero here. So the call reaches the op whatever is wrong, and gets its sentence.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from gemmill.runtime import checks, operands
from gemmill.runtime.schemas import BY_NAME


def size(x: Tensor, dim: int) -> int:
    """A dimension of a tensor, zero where it has none there."""
    try:
        return x.shape[dim]
    except IndexError:
        return 0


def sizes(x: Tensor, count: int) -> tuple[int, ...]:
    """The first `count` dimensions of a tensor."""
    return (*x.shape, *(0,) * count)[:count]


def parts(whole: int, part: int) -> int:
    """How many whole parts there are, zero where a part is no size."""
    return whole // part if part > 0 else 0


def has_values(x: Tensor) -> bool:
    """Whether there is data, as fake tensors and those on meta have not."""
    return not (x.is_meta or isinstance(x, FakeTensor))


def check_call(op: str, arguments: Sequence[Any]) -> None:
    """Raise RuntimeError as the op does, also for tensors without values; for callers that then read values."""
    schema = BY_NAME[op]
    for name, x in zip(schema.arguments, arguments, strict=True):
        if isinstance(x, Tensor) and not has_values(x):
            raise RuntimeError(
                f"{op}: check is True and {name} is a tensor without values on {x.device.type}: leave check out, or call it with data"
            )
    checks.check(schema, operands.of_arguments(schema, arguments))
