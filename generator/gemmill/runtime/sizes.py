"""Sizes for what a function allocates, of arguments that no contract has judged yet.

A size that an argument does not have is zero here. So the op is reached whatever is wrong, and says it in its sentence.
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
    """The first dimensions of a tensor, as many as are asked for."""
    return (*x.shape, *(0,) * count)[:count]


def parts(whole: int, part: int) -> int:
    """How many whole parts there are, zero where a part is no size."""
    return whole // part if part > 0 else 0


def has_values(x: Tensor) -> bool:
    """Whether there is data, as fake tensors and those on meta have not."""
    return not (x.is_meta or isinstance(x, FakeTensor))


def check_call(op: str, arguments: Sequence[Any]) -> None:
    """Raise RuntimeError as the op does, and where a tensor has no values: before values of a call are looked at."""
    schema = BY_NAME[op]
    for name, x in zip(schema.arguments, arguments, strict=True):
        if isinstance(x, Tensor) and not has_values(x):
            raise RuntimeError(
                f"{op}: check is True and {name} is a tensor without values on {x.device.type}: leave check out, or call it with data"
            )
    checks.check(schema, operands.of_arguments(schema, arguments))
