"""What a sweep of a family's variants needs: the classes of calls that are measured, and what its plans and reports ask."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gemmill.family.shaped_call import ShapedCall

Sizes = Mapping[str, int]
"""Of a call, by their names."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A class of calls that is measured, and that tables and journals know by name."""

    name: str
    call: Callable[[Sizes], ShapedCall]
    """A call of such sizes, with operands as torch allocates them."""
    flops: Callable[[Sizes], float]
    """Multiplications and additions of a call; 0 where memory alone counts."""
    operand_bits: int
    """Of the wider operand of those: what a device can do depends on it."""
    bytes: Callable[[Sizes], int]
    """What a call must read and write, each byte once."""
    serves: Callable[[Any], bool]
    """Whether a config's kernel serves it."""
    least: Mapping[str, int] = field(default_factory=dict)
    """Sizes below which a dry run must not cut a call down, where it is another class below them."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What is measured of a family, and how its variants are told apart."""

    measured: tuple[Measured, ...]
    steps: tuple[int, ...]
    """Bucketed sizes at which weights are measured unless told otherwise; a row of a table serves up to its own."""
    example: Mapping[str, Any]
    """A row of a file of shapes, for who wrote none."""
    tiny: Mapping[str, int]
    """Sizes of a dry run on a CPU, at most."""
    is_last_resort: Callable[[Any], bool]
    """Whether a config's kernel is slow and takes what no other does: it stays in every selection."""
    kin: Callable[[Any], Hashable]
    """What configs share that differ only in what a measurement stands for."""
    kinds: Mapping[str, str]
    """Kinds of variants that reports tell apart, with words for each."""
    shown: Callable[[Any], tuple[str, str]]
    """A config's kind, and the few characters that a map of winners shows of it."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """Mean loss of a choice by what it rests on, `nearest` or `model`, as it was measured; nothing where it was not."""
    tile: Callable[[Any], tuple[int, ...]] | None = None
    """What a second opinion calls the tile of a row, by its facts; None where there is no such opinion."""
