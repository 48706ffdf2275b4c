"""Timing all contenders on one problem, in rounds that alternate between them."""

from collections.abc import Sequence
from dataclasses import dataclass

from gemmill.tune.operands import Operands
from gemmill.tune.problems import Problem
from gemmill.tune.statistics import Sample, sample
from gemmill.tune.timing import FEWEST_CALLS, Prepared, Timer
from harness.contenders import Contender, WrongResult

SHORT_GRAPH_US = 300.0
FEWEST_SHORT_CALLS = 4
FP8_FLOPS, BYTES_PER_S = 1.4e15, 4.2e12
"""What an H200 reaches: for guessing how many calls make a round of useful length."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How carefully to measure."""

    rounds: int
    short: bool = False
    """Few calls of long problems in a round: for sweeps"""
    give_up_ratio: float | None = None
    """After the first round, contenders slower than this many times the best are dropped."""

    def calls(self, problem: Problem) -> int:
        """Fewest calls in one round."""
        if not self.short:
            return FEWEST_CALLS
        guess_us = max(problem.flops / FP8_FLOPS, problem.bytes / BYTES_PER_S) * 1e6 + 3.0
        return int(min(FEWEST_CALLS, max(FEWEST_SHORT_CALLS, SHORT_GRAPH_US // guess_us)))


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What came out for one problem."""

    problem: Problem
    samples: dict[str, Sample]
    """By contender; one round only for those that were dropped"""
    failures: dict[str, str]
    """Contenders without a time, and why: the first line of their error"""


def measure(operands: Operands, contenders: Sequence[Contender], timer: Timer, plan: Plan) -> Measurement:
    """Prepare every contender that takes the problem, then time them in turn, each round beginning with another."""
    problem = operands.problem
    failures: dict[str, str] = {}
    prepared: dict[str, Prepared] = {}
    for contender in contenders:
        if not contender.takes(problem):
            continue
        try:
            prepared[contender.name] = contender.prepare(operands, timer, plan.calls(problem))
        except (RuntimeError, ValueError, TypeError, WrongResult) as error:
            failures[contender.name] = first_line(error)
            timer.clear()
    rounds: dict[str, list[float]] = {name: [] for name in prepared}
    try:
        _alternate(prepared, rounds, plan)
    finally:
        for ready in prepared.values():
            ready.close()
    return Measurement(problem=problem, samples={name: sample(us) for name, us in rounds.items()}, failures=failures)


def _alternate(prepared: dict[str, Prepared], rounds: dict[str, list[float]], plan: Plan) -> None:
    running = list(prepared)
    for turn in range(plan.rounds):
        for i in range(len(running)):
            name = running[(i + turn) % len(running)]
            rounds[name].append(prepared[name].round())
        if turn == 0 and plan.give_up_ratio is not None and running:
            limit = plan.give_up_ratio * min(rounds[name][0] for name in running)
            running = [name for name in running if rounds[name][0] <= limit]


def first_line(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
