"""A call, as far as the choice of a variant depends on it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ShapedCall:
    """One call, as far as the choice of a variant depends on it: its class and its sizes."""

    family: str
    call_class: int
    """The number of its class, which its family gives."""
    sizes: tuple[int, ...]
    """In the order of their names."""
    alignments: tuple[int, ...]
    """Bytes (16 at most) that data and row stride of each aligned operand are multiples of."""
