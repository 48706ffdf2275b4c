"""Random numbers of a compressed cache's seed, the same on every machine.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). Its
output k depends on the seed and k alone. A seed has one stream for each purpose. Stream p starts at output p of the
generator of the seed, so signs, dense rotations and projections of one seed share nothing.
"""

from enum import IntEnum
from statistics import NormalDist

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_NORMAL = NormalDist()
_GRID = 2.0**20
"""Normal deviates are multiples of 1 / _GRID, so that an ulp of the C library's logarithm does not show."""


class Purpose(IntEnum):
    """The purpose of a stream of numbers."""

    SIGNS = 0
    DENSE_ROTATION = 1
    PROJECTION = 2


def outputs(seed: int, count: int, start: int = 0) -> list[int]:
    """Outputs `start` to `start + count` of SplitMix64 of a seed in [0, 2^64)."""
    if not 0 <= seed <= _WORD:
        raise ValueError(f"Seed {seed} was given; seeds are whole numbers from 0 to 2^64 - 1: take one of these.")
    return [_mix((seed + k * _GOLDEN) & _WORD) for k in range(start + 1, start + count + 1)]


def signs(seed: int, count: int) -> list[int]:
    """Random signs, 1 or -1: sign k is negative where the highest bit of output k is set."""
    return [-1 if word >> 63 else 1 for word in outputs(_stream(seed, Purpose.SIGNS), count)]


def normals(seed: int, purpose: Purpose, count: int) -> list[float]:
    """Standard normal deviates: the inverse distribution function (algorithm AS241) at (output / 2^11 + 1 / 2) / 2^53.

    They round to multiples of 2^-20, so all machines get the same numbers unless one lies within rounding of a tie.
    """
    uniform = ((word >> 11) + 0.5 for word in outputs(_stream(seed, purpose), count))
    return [round(_NORMAL.inv_cdf(u * 2.0**-53) * _GRID) / _GRID for u in uniform]


def _stream(seed: int, purpose: Purpose) -> int:
    return outputs(seed, 1, start=purpose)[0]


def _mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)
