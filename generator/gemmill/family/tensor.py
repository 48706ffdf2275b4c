"""A tensor of an op, declared once."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gemmill.family.steps import Step
from gemmill.vocab import DType, Format

_OF_BYTES = ("uint8", "int8", "float8_e4m3fn", "float8_e5m2")


class Layout(StrEnum):
    """How the elements of a tensor lie."""

    ROWS = "rows"
    """rows of contiguous elements, at one stride; apart in outputs"""
    COLUMNS = "columns"
    """of a matrix: columns of contiguous elements"""
    VECTOR = "vector"
    """in order without gaps, along the one dimension that has more than one element"""
    VALUES = "values"
    """in order without gaps, in whatever dimensions"""
    LIKE = "like"
    """as those of the tensor that the shape names"""
    FREE = "free"
    """as another step of the contract says"""


@dataclass(frozen=True)
class Same:
    """The dtype of another tensor."""

    role: str


@dataclass(frozen=True)
class ResultOf:
    """One of the dtypes that belong to that of another tensor."""

    role: str
    results: Mapping[Any, tuple[DType, ...]] = field(hash=False)
    """Its dtypes for each dtype of that tensor."""


@dataclass(frozen=True)
class Tensor:
    """The required dtypes, shape and layout of a tensor, by its role. Its schema says whether it is optional, written
    or returned.
    """

    role: str
    shape: str
    """Sizes with spaces between, `M K` or `... hidden`, where `...` stands for the dimensions of the first tensor that
    has it. A new size takes its name from a multiple or part of it too (`2*hidden`, `K/2` of packed codes); others
    are expressions, such as `up(M,128)`. Of VALUES: their number.
    """
    dtypes: tuple[DType | Format, ...] | Same | ResultOf
    """Of formats that share a dtype, an argument or fixed value `format` selects one."""
    layout: Layout = Layout.FREE
    said: str = ""
    """The text for its dtypes, where it is not a list."""
    each: str = ""
    """The owner of each of several values, in sentences."""
    parts: str = ""
    """The names of the parts of its rows, where they have several (`... 2*hidden`)."""
    needs: tuple[Step, ...] = ()
    """Conditions on a call that has it, checked before the tensor itself."""
    alignment: int = 1
    """Bytes, up to 16, at a multiple of which each kernel of the op wants the first element; always that of an element."""

    def __post_init__(self) -> None:
        if self.alignment not in (1, 2, 4, 8, 16):
            raise ValueError(f"{self.role!r} is aligned to {self.alignment} bytes, expected 1, 2, 4, 8 or 16")

    @property
    def sizes(self) -> list["Size"]:
        """Its dimensions, without those that `...` stands for."""
        return [Size.of(text) for text in self.shape.split() if text != "..."]

    @property
    def is_read_in_pieces(self) -> bool:
        """Whether there are addresses that kernels cannot read it at."""
        if not isinstance(self.dtypes, tuple):
            return True
        return self.alignment > 1 or any(dtype.torch_name not in _OF_BYTES for dtype in self.dtypes)

    @property
    def follows(self) -> bool:
        """Whether it has the dimensions of another tensor but for the last."""
        return self.shape.startswith("... ")


@dataclass(frozen=True, kw_only=True)
class Size:
    """One dimension."""

    text: str
    name: str
    """The name in `times * name / over`; empty for another expression."""
    times: int = 1
    over: int = 1

    @classmethod
    def of(cls, text: str) -> "Size":
        """The size with this text."""
        match = re.fullmatch(r"(?:(\d+)\*)?([A-Za-z_]\w*)(?:/(\d+))?", text)
        if match is None:
            return cls(text=text, name="")
        times, name, over = match.groups()
        return cls(text=text, name=name, times=int(times or 1), over=int(over or 1))

    @property
    def expression(self) -> str:
        """In the language of contracts."""
        if not self.name:
            return self.text
        times = f"{self.times} * " if self.times > 1 else ""
        return f"{times}{self.name}" + (f" // {self.over}" if self.over > 1 else "")


def torch_names(dtypes: Sequence[DType | Format]) -> str:
    """A tuple of them, in the language of contracts."""
    return f"({''.join(f'{name}, ' for name in dict.fromkeys(dtype.torch_name for dtype in dtypes))})"


def any_of(words: Sequence[str]) -> str:
    """In words: `a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
