"""Workloads of families that have no sweep of all their calls: a kind of call at one size.

A family with a sweep has the tuner's (`gemmill.tuner.workloads`), which has the same properties.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, Self, TypeVar


@dataclass(frozen=True, kw_only=True)
class Kind(ABC):
    """A kind of calls, by its name in options and results. A family's class adds types, formats and amounts."""

    name: str

    def at(self, **sizes: Any) -> "Workload[Self]":
        """A call of such sizes."""
        return Workload(self, tuple(sizes.items()))

    def sizes(self, p: "Workload[Self]") -> dict[str, int]:
        """The sizes in results, by name; the first is the number of rows."""
        return dict(p.at)

    def flops(self, p: "Workload[Self]") -> float:
        """Multiplications and additions; 0 where memory alone counts."""
        return 0.0

    @property
    def operand_bits(self) -> int:
        """Bits of the wider operand of a product, by which times are guessed."""
        return 8

    @abstractmethod
    def bytes(self, p: "Workload[Self]") -> int:
        """The bytes that must be read and written, each once."""

    def text(self, p: "Workload[Self]") -> str:
        """The sizes in words."""
        return " x ".join(map(str, p.sizes.values()))


K = TypeVar("K", bound=Kind)


@dataclass(frozen=True)
class Workload(Generic[K]):
    """A kind of call at one size."""

    of: K
    at: tuple[tuple[str, Any], ...]
    """Sizes, and other parts of a call that the kind leaves open, by name."""

    def __getattr__(self, name: str) -> Any:
        """A size by its name."""
        if "at" not in vars(self) or name not in (sizes := dict(self.at)):  # a copy has no fields at first
            raise AttributeError(f"a workload has no {name!r}")
        return sizes[name]

    def resized(self, **sizes: Any) -> Self:
        """The same kind of call at these sizes."""
        return type(self)(self.of, tuple((dict(self.at) | sizes).items()))

    @property
    def kind(self) -> str:
        """The kind's name."""
        return self.of.name

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes in results, by name."""
        return self.of.sizes(self)

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return self.of.flops(self)

    @property
    def operand_bits(self) -> int:
        """Bits of the wider operand of a product."""
        return self.of.operand_bits

    @property
    def bytes(self) -> int:
        """The bytes that must be read and written."""
        return self.of.bytes(self)

    def __str__(self) -> str:
        return f"{self.kind} {self.of.text(self)}"


def any_size(random: Random, least: int, most: int) -> float:
    """A random size, as likely to be twice as large at any size."""
    return float(least * (most / least) ** random.random())
