"""How scale factors lie over an operand."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class ScaleGranularity(StrEnum):
    """The part of an operand that shares one scale."""

    CHANNEL = "channel"
    """one scale for the tensor, or one for each row of A (column of B): a run-time argument of the same binary"""
    GROUP = "group"
    """one scale for each group of `group_size` along K"""
    BLOCK = "block"
    """one scale for each block of `group_size` x `group_size`"""


class ScaleLayout(StrEnum):
    """The orders in which scale tensors of more than one dimension may be stored."""

    VECTOR = "vector"
    """one dimension or none: there is nothing to order"""
    MN_MAJOR = "mnmajor"
    """A's scales M-major, data and stride along K at multiples of 16 bytes, as TMA wants them; B's by their strides"""
    STRIDED = "strided"
    """any order: the kernel reads both by their strides"""


GROUP_SIZES = (128, 64, 32)
"""Sizes of groups along K that kernels offer; numbers of classes of calls follow the order."""


@dataclass(frozen=True, kw_only=True)
class ScaleGroups:
    """Scales in groups along K. A has one for each 1 x size; B has one for each size x size (blocks) or 1 x size
    (rows)."""

    size: int
    b_scale: ScaleGranularity
    """How B's scales lie: BLOCK, or GROUP for rows."""

    @property
    def of_b(self) -> str:
        """The part of B that shares a scale, in words."""
        return f"{self.size if self.b_scale is ScaleGranularity.BLOCK else 1} x {self.size}"

    def a_shape(self, m: int, k: int) -> tuple[int, int]:
        """Shape of A's scales: [M, K/size], the last group cut short where K is no multiple of it."""
        return m, -(-k // self.size)

    def b_shape(self, n: int, k: int) -> tuple[int, int]:
        """Shape of B's scales: [K/size, N/size] of blocks, [K/size, N] of rows."""
        return -(-k // self.size), n if self.b_scale is ScaleGranularity.GROUP else -(-n // self.size)


SCALE_GROUPS = tuple(
    ScaleGroups(size=size, b_scale=b_scale)
    for size in GROUP_SIZES
    for b_scale in (ScaleGranularity.BLOCK, ScaleGranularity.GROUP)
)
"""The kinds that exist; where shapes fit several, all of them mean the same and the first counts."""


def scale_groups_of(a_shape: Sequence[int], b_shape: Sequence[int], m: int, n: int, k: int) -> ScaleGroups | None:
    """The kind to which scales of these shapes belong, None if to none.

    Shapes can fit scales per tensor or channel too: [M, 1] and [1, N], where K is one group. Test for those first.
    """
    given = (tuple(a_shape), tuple(b_shape))
    return next((g for g in SCALE_GROUPS if given == (g.a_shape(m, k), g.b_shape(n, k))), None)
