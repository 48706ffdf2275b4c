"""The randomness of one call, which follows from the op, the seed and the call's index alone."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Choices of one call."""

    def __init__(self, op: str, seed: int, index: int) -> None:
        self._random = random.Random(f"{op} {seed} {index}")  # noqa: S311  (nothing here is secret)

    def one_of(self, values: Sequence[T]) -> T:
        """One of the values, each as likely."""
        return self._random.choice(values)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random.random() < probability

    def below(self, end: int) -> int:
        """A whole number from 0 to end - 1."""
        return self._random.randrange(end)

    def shuffled(self, values: Sequence[T]) -> list[T]:
        """The values in any order."""
        return self._random.sample(values, len(values))

    def log_uniform(self, most: int) -> int:
        """From 1 to `most`, small ones as likely as large ones."""
        return min(most, int((most + 1) ** self._random.random()))

    def size(self, most: int) -> int:
        """A size from 0 to `most`: none, one, few, whole tiles, tiles' edges, and any."""
        kind = self._random.random()
        if kind < 0.03:
            return 0
        if kind < 0.1:
            return min(1, most)
        if kind < 0.3:
            return min(most, 1 + self.below(17))
        if kind < 0.6:
            return min(most, 16 * -(-self.log_uniform(most) // 16))
        if kind < 0.75:
            return min(most, max(1, 64 * -(-self.log_uniform(most) // 64) + self.one_of((-1, 0, 1))))
        return self.log_uniform(most)
