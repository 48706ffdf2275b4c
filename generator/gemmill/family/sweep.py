"""A sweep of a family's variants: its measured classes of calls, and the facts that its plans and reports need."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gemmill.family.shaped_call import ShapedCall

Sizes = Mapping[str, int]
"""Of a call, by their names."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A measured class of calls, which tables and journals know by name."""

    name: str
    call: Callable[[Sizes], ShapedCall]
    """A call of such sizes, with operands as torch allocates them."""
    flops: Callable[[Sizes], float]
    """Multiplications and additions of a call; 0 where memory alone counts."""
    operand_bits: int
    """Of the wider operand of those, on which the device's peak rate depends."""
    bytes: Callable[[Sizes], int]
    """The bytes that a call must read and write, each once."""
    serves: Callable[[Any], bool]
    """Whether a config's kernel serves it."""
    least: Mapping[str, int] = field(default_factory=dict)
    """Sizes below which a dry run must not cut a call down, where it is another class below them."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The measurements of a family, and the kinds of its variants."""

    measured: tuple[Measured, ...]
    steps: tuple[int, ...]
    """Bucketed sizes at which to measure weights by default; a row of a table serves up to its own."""
    example: Mapping[str, Any]
    """A row of a file of shapes, for users without one."""
    tiny: Mapping[str, int]
    """Sizes of a dry run on a CPU, at most."""
    is_last_resort: Callable[[Any], bool]
    """Whether a config's kernel is slow and the only one for some calls: it stays in every selection."""
    kin: Callable[[Any], Hashable]
    """The common key of configs of which a measurement of one stands for all."""
    kinds: Mapping[str, str]
    """Kinds of variants in reports, with words for each."""
    shown: Callable[[Any], tuple[str, str]]
    """A config's kind, and the few characters that a map of winners shows of it."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """Measured mean loss of a choice by its evidence, `nearest` or `model`; empty without measurements."""
    tile: Callable[[Any], tuple[int, ...]] | None = None
    """The tile that a second opinion names for a row, by its facts; None where there is no such opinion."""

    def measured_as(self, call: ShapedCall) -> str | None:
        """The name of the measured class of a call; None where its class is not measured."""
        return self._names.get(call.call_class)

    @cached_property
    def _names(self) -> dict[int, str]:
        return {measured.call(self.tiny).call_class: measured.name for measured in self.measured}
