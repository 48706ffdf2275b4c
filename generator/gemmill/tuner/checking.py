"""A time is worth nothing if the result is wrong: the possible faults of a candidate, and the memory under watch.

The family's cases compare results with the reference, and guards watch the memory around them. Calling twice and
comparing all of both results finds faults outside the compared rows. The check also compares results of exact operands,
of which no right kernel loses a bit before it stores the result. For a long K the tolerance of random operands hides
missing products.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch

GUARD_BYTES = 1 << 20
GUARD = 0xA5
PAD = 64
"""Elements between the rows of the second call's output."""


class Fault(StrEnum):
    """The fault of a candidate; no sweep times it, and no call gets it."""

    CRASH = "crash"
    """its process or its CUDA context died"""
    HANG = "hang"
    """it did not answer in time"""
    REFUSED = "refused"
    """it raised an error"""
    NAN = "nan"
    """NaN where the reference has none: most often the kernel never wrote these elements"""
    WRONG = "wrong"
    """elements beyond the op's tolerance"""
    OUT_OF_BOUNDS = "out of bounds"
    """it wrote outside its output or workspace"""
    NOT_REPEATABLE = "not repeatable"
    """the same call gave another result"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A fault and a sentence about it."""

    fault: Fault
    detail: str


class GuardedArena:
    """Memory for a workspace, with guard bytes before it and behind its used part."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.used = 0
        self._memory = torch.empty(size + 2 * GUARD_BYTES, dtype=torch.uint8, device=device)

    @property
    def address(self) -> int:
        """Where a workspace begins."""
        return self._memory.data_ptr() + GUARD_BYTES

    def reset(self) -> None:
        """Poison all of it, so that a kernel that reads before it writes finds no zero."""
        self.used = 0
        self._memory.fill_(GUARD)

    def is_intact(self) -> bool:
        """Whether the bytes around the `used` ones of the last workspace are unchanged."""
        bands = (self._memory[:GUARD_BYTES], self._memory[GUARD_BYTES + self.used :])
        return all(bool((band == GUARD).all()) for band in bands)
