"""The schema of an op, in torch's language: the only place of its arguments' names, kinds and order."""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

VLLM_PREFIX = "vllm_"
"""Before vLLM's name of an op that does what vLLM's does, where ours does something else."""


class Kind(StrEnum):
    """Types of arguments, as torch writes them. The order is that of kernels/extension/call.h."""

    TENSOR = "Tensor"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    INTS = "int[]"
    TEXT = "str"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One argument of an op."""

    name: str
    kind: Kind
    written: bool
    optional: bool
    """Whether None may be given."""
    default: bool | None
    """What stands in for an argument that is not given; None too where `required`."""
    required: bool


_PARAMETER = re.compile(r"(Tensor|int\[\]|int|float|bool|str)(\(\w!\))?(\?)? (\w+)(?:=(None|False))?")


@dataclass(frozen=True)
class OpSchema:
    """An out-variant op, by its schema in torch's language. It returns nothing."""

    schema: str

    @cached_property
    def name(self) -> str:
        """The op's name."""
        return self.schema.partition("(")[0]

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Its arguments. Raises ValueError for a schema with others than those this project uses."""
        inner = self.schema.removesuffix(") -> ()").partition("(")[2]
        return tuple(_parameter(text) for text in inner.split(", "))

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """Names of its arguments."""
        return tuple(parameter.name for parameter in self.parameters)


def _parameter(text: str) -> Parameter:
    match = _PARAMETER.fullmatch(text)
    if match is None:
        raise ValueError(f"argument {text!r} of a schema cannot be read")
    kind, written, optional, name, default = match.groups()
    return Parameter(
        name=name,
        kind=Kind(kind),
        written=written is not None,
        optional=optional is not None,
        default=False if default == "False" else None,
        required=default is None,
    )
