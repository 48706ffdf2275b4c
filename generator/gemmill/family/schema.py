"""The schema of an op, in torch's language: the only place of its arguments' names, kinds and order."""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

VLLM_PREFIX = "vllm_"
"""The prefix of vLLM's name for an op that computes as vLLM's does, where ours computes something else."""


class ArgumentKind(StrEnum):
    """Types of arguments, as torch writes them. The order is that of kernels/extension/call.h."""

    TENSOR = "Tensor"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    INTS = "int[]"
    TEXT = "str"
    TENSORS = "Tensor[]"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One argument of an op."""

    name: str
    kind: ArgumentKind
    written: bool
    optional: bool
    """Whether None may be given."""
    default: bool | int | float | str | None
    """The value of an omitted argument; None too where `required`."""
    required: bool


_PARAMETER = re.compile(
    r"(Tensor\[\]|Tensor|int\[\]|int|float|bool|str)(\(\w!\))?(\?)? (\w+)(?:=(None|True|False|-?[\d.]+(?:e-?\d+)?|\"\w+\"))?"
)
_DEFAULTS = {"None": None, "True": True, "False": False}


@dataclass(frozen=True)
class OpSchema:
    """An op, by its schema in torch's language. It returns tensors, which have names where there are several."""

    schema: str

    @cached_property
    def name(self) -> str:
        """The op's name."""
        return self.schema.partition("(")[0]

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Its arguments. Raises ValueError for a schema with others than those this project uses."""
        inner = self.schema.partition("(")[2].rpartition(") -> ")[0]
        return tuple(_parameter(text) for text in inner.split(", "))

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """Names of its arguments."""
        return tuple(parameter.name for parameter in self.parameters)

    @cached_property
    def returns(self) -> tuple[str, ...]:
        """Names of the tensors that it returns, allocated by it; `out` is one without a name. Raises ValueError for others."""
        inner = self.schema.rpartition(" -> ")[2].removeprefix("(").removesuffix(")")
        return tuple(_returned(text, inner) for text in inner.split(", ") if text)


def _returned(text: str, all_of_them: str) -> str:
    kind, _, name = text.partition(" ")
    if kind != "Tensor" or (not name and text != all_of_them):
        raise ValueError(
            f"result {text!r} of a schema cannot be read: results are tensors, of several each with a name"
        )
    return name or "out"


def _parameter(text: str) -> Parameter:
    match = _PARAMETER.fullmatch(text)
    if match is None:
        raise ValueError(f"argument {text!r} of a schema cannot be read")
    kind, written, optional, name, default = match.groups()
    return Parameter(
        name=name,
        kind=ArgumentKind(kind),
        written=written is not None,
        optional=optional is not None,
        default=None if default is None else _default(ArgumentKind(kind), default),
        required=default is None,
    )


def _default(kind: ArgumentKind, text: str) -> bool | int | float | str | None:
    if text in _DEFAULTS:
        return _DEFAULTS[text]
    if kind is ArgumentKind.TEXT:
        return text.strip('"')
    return float(text) if kind is ArgumentKind.FLOAT else int(text)
