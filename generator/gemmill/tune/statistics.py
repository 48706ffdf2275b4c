"""Numbers made of several measurements."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Repeated measurements of one duration, in microseconds."""

    median_us: float
    spread: float
    """(third quartile - first quartile) / median"""
    rounds_us: tuple[float, ...]


def sample(rounds_us: Sequence[float]) -> Sample:
    """Summary of one or more rounds."""
    if not rounds_us:
        raise ValueError("no round was measured")
    median = statistics.median(rounds_us)
    spread = 0.0
    if len(rounds_us) > 1:
        first, _, third = statistics.quantiles(rounds_us, n=4, method="inclusive")
        spread = (third - first) / median if median else 0.0
    return Sample(median_us=median, spread=spread, rounds_us=tuple(rounds_us))


def steady_us(samples: Mapping[str, Sample]) -> dict[str, float]:
    """Each contender's median after the rounds' common drift is taken out, by the contenders that ran in all of them."""
    rounds = max((len(taken.rounds_us) for taken in samples.values()), default=0)
    whole = [taken for taken in samples.values() if len(taken.rounds_us) == rounds]
    drift = [geometric_mean([taken.rounds_us[i] / taken.median_us for taken in whole]) or 1.0 for i in range(rounds)]
    return {
        name: statistics.median(us / drift[i] for i, us in enumerate(taken.rounds_us))
        for name, taken in samples.items()
    }


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """None where there is nothing to take the mean of."""
    if not ratios:
        return None
    return math.exp(math.fsum(math.log(ratio) for ratio in ratios) / len(ratios))


def first_line(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
