"""The choice of the fastest candidate, as far as the rounds can tell.

Rounds alternate between candidates, so a round is a fair comparison and its ranks do not depend on the clocks. The
least mean rank wins. A candidate that was faster than it in a quarter of the rounds and slower by no more than the
margin is tied with it. So is one that was slower by less than half a per cent. Ties go to today's choice, else to the
first name. So the same rounds always give the same choice and noise seldom gives another. Today's choice stays unless
another beats it by the margin.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RESOLUTION = 0.005
"""Differences of medians below this are not shown reliably by events around a graph."""
TIED_SHARE = 0.25
MARGIN = 0.03


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The choice for a workload, and how clear it is."""

    chosen: str
    ranked: tuple[str, ...]
    """Every variant that ran to the end. The choice stands first, the others by time."""
    us: Mapping[str, float]
    """Their medians in microseconds. It takes out the changes of the clocks over a whole round."""
    tied: tuple[str, ...]
    """The fastest variant, and those as fast as it."""
    fastest: str
    present: str | None
    """The variant that would be chosen without this measurement."""

    @property
    def replaces(self) -> bool:
        """Whether the choice is another than today's."""
        return self.present is not None and self.chosen != self.present

    @property
    def regret(self) -> float | None:
        """How much longer today's choice takes than the fastest, as a fraction; None where it was not measured to the end."""
        return self.us[self.present] / self.us[self.fastest] - 1 if self.present in self.us else None


def decide(rounds_us: Mapping[str, Sequence[float]], present: str | None, margin: float = MARGIN) -> Decision | None:
    """The decision between variants (peers left out by the caller); None where none was measured."""
    turns = max((len(us) for us in rounds_us.values()), default=0)
    complete = {name: us for name, us in rounds_us.items() if len(us) == turns}
    if not turns:
        return None
    ranks = dict.fromkeys(complete, 0.0)
    for turn in range(turns):
        ordered = sorted(complete, key=lambda name: (complete[name][turn], name))
        for rank, name in enumerate(ordered):
            ranks[name] += rank
    us = steady_us(complete)
    fastest = min(complete, key=lambda name: (ranks[name], us[name], name))
    tied = tuple(
        name for name in sorted(complete) if name == fastest or _is_tied(complete[name], complete[fastest], margin)
    )
    chosen = present if present in tied else tied[0]
    if present in complete and chosen != present and _slowdown(complete[present], complete[chosen]) <= margin:
        chosen = present
    ranked = (chosen, *sorted((name for name in us if name != chosen), key=lambda name: (us[name], name)))
    return Decision(chosen=chosen, ranked=ranked, us=us, tied=tied, fastest=fastest, present=present)


def steady_us(rounds_us: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each contender. The contenders that ran in all rounds give the rounds' common drift, which it takes
    out.
    """
    rounds = max(map(len, rounds_us.values()), default=0)
    whole = [[us / statistics.median(taken) for us in taken] for taken in rounds_us.values() if len(taken) == rounds]
    drift = [statistics.geometric_mean(turn) for turn in zip(*whole, strict=True)]
    return {
        name: statistics.median(us / drift[turn] for turn, us in enumerate(taken)) for name, taken in rounds_us.items()
    }


def _is_tied(us: Sequence[float], fastest: Sequence[float], margin: float) -> bool:
    wins, slowdown = sum(a < b for a, b in zip(us, fastest, strict=True)), _slowdown(us, fastest)
    return (wins >= TIED_SHARE * len(us) and slowdown <= margin) or slowdown <= RESOLUTION


def _slowdown(us: Sequence[float], other: Sequence[float]) -> float:
    """The median over rounds of how much longer one takes, as a fraction."""
    return statistics.median(a / b for a, b in zip(us, other, strict=True)) - 1


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far two runs of the same sweep agree."""

    workloads: int
    flipped: int
    """The number of workloads for which the two runs choose otherwise."""
    beyond_margin: int
    """The number of flips where the choice was slower by more than the margin in the other run."""
    regret: float
    """Mean loss in a run by taking the other run's choice, as a fraction of the run's fastest."""
    worst_regret: float

    @property
    def flip_share(self) -> float:
        """The share of workloads for which the two runs choose otherwise."""
        return self.flipped / self.workloads if self.workloads else 0.0


def agreement(first: Mapping[Any, Decision], second: Mapping[Any, Decision], margin: float = MARGIN) -> Agreement:
    """The agreement of two runs, over the workloads that both measured."""
    shared = [key for key in first if key in second]
    regrets = [
        one.us[other.chosen] / one.us[one.fastest] - 1
        for key in shared
        for one, other in ((first[key], second[key]), (second[key], first[key]))
        if other.chosen in one.us
    ]
    flips = [key for key in shared if first[key].chosen != second[key].chosen]
    return Agreement(
        workloads=len(shared),
        flipped=len(flips),
        beyond_margin=sum(_beyond(first[key], second[key], margin) for key in flips),
        regret=statistics.fmean(regrets) if regrets else 0.0,
        worst_regret=max(regrets, default=0.0),
    )


def _beyond(one: Decision, other: Decision, margin: float) -> bool:
    return any(
        b.chosen not in a.us or a.us[b.chosen] > (1 + margin) * a.us[a.chosen] for a, b in ((one, other), (other, one))
    )
