"""The conditions on a call, in words that compile to a program: the steps of a contract."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Union

from gemmill.family.classes import Classes


@dataclass(frozen=True)
class Let:
    """Names a size of the call."""

    name: str
    expression: str
    """Of whole numbers, sizes named before and facts of tensors: `rank(x)`, `size(x, 0)`, `rows(x)`, `numel(x)`,
    `row_stride(x)`, `step(x, 0)`, `longer(x)`, `dense(x)`, `dtype(x)`; `ceil(x, 4)` divides, rounding up; `up(x, 4)` is the
    next multiple; `most(x, y)`."""


@dataclass(frozen=True)
class Require:
    """A condition, and the sentence for a call that breaks it."""

    test: str
    """Comparisons of such expressions, `and`, `or`, and of tensors `dtype(x) in (float32, ...)`, `like(x, y, last)`,
    `strides(x, y)`, `detached(x)`, `together(x, y)`, `apart(x, y)`, `aligned(16, x)`; `x in ("a", "b")` of a text."""
    say: str
    """With `{x.name}`, `{x.dtype}`, `{x.shape}`, `{x.strides}`, `{x.device}`, `{x.pieces[16]}` of a tensor, `{x}` of another
    argument or size."""


@dataclass(frozen=True)
class When:
    """Conditions that apply where a test holds; the bare name of an optional argument tests whether the call has it."""

    test: str
    steps: tuple["Step", ...]


@dataclass(frozen=True)
class OneOf:
    """Alternatives of which a call takes the first that holds: their index becomes a size."""

    name: str
    tests: Mapping[str, str] = field(hash=False)
    """By the name of each alternative."""
    say: str
    """Where none holds."""


@dataclass(frozen=True)
class Special:
    """A hand-written check in both languages, by its name in the family's OpSet."""

    name: str


class Aspect(StrEnum):
    """The aspect of the declared tensors to check."""

    RANK = "rank"
    SHAPE = "shape"
    DTYPE = "dtype"
    LAYOUT = "layout"
    WHOLE = "whole"
    """needs, dtype, shape and layout of one tensor after another, if the call has it"""
    DEVICE = "device"
    """that each is on the device of the first"""
    APART = "apart"
    """that no output shares a byte with another tensor"""


@dataclass(frozen=True)
class Check:
    """A check that tensors are as declared (`Tensor`)."""

    aspect: Aspect
    roles: str
    """In the order of the checks, with spaces between; roles that the op lacks are skipped."""
    unread: str = "values"
    """The words of the sentence for data that an overlapping result would overwrite."""


Step = Union[Let, Require, When, OneOf, Special, Check, Classes]  # noqa: UP007 (a forward reference stands in When)
