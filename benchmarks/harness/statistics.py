"""Numbers made of several measurements."""

import statistics
from collections.abc import Sequence
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


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """None where there is nothing to take the mean of."""
    return statistics.geometric_mean(ratios) if ratios else None


def paired_ratio(of: Sample, to: Sample) -> float:
    """The median over the rounds of `of` / `to`, each taken in the same round.

    Where power limits them, clocks change in steps in the middle of a measurement: that moves the medians of two contenders
    by different amounts, but not the ratio in a round, whose turns follow each other.
    """
    return statistics.median(x / y for x, y in zip(of.rounds_us, to.rounds_us, strict=False))
