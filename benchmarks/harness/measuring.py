"""Timing all contenders on one workload, in rounds that alternate between them."""

from collections.abc import Sequence
from dataclasses import dataclass

from gemmill.numerics.measured import Operands
from gemmill.tuner.protocol import first_line
from gemmill.tuner.timing import shuffled
from gemmill.tuner.workloads import Workload
from harness.contenders import Contender, WrongResult
from harness.statistics import Sample, sample
from harness.timers import Prepared, Rounds, Timer


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The outcome of one workload."""

    workload: Workload
    samples: dict[str, Sample]
    """By contender; one round only for dropped ones"""
    failures: dict[str, str]
    """Contenders without a time, and why: the first line of their error"""


def measure(operands: Operands, contenders: Sequence[Contender], timer: Timer, method: Rounds) -> Measurement:
    """Prepare every contender that takes the workload, then time them in turn, each round beginning with another."""
    workload = operands.workload
    failures: dict[str, str] = {}
    prepared: dict[str, Prepared] = {}
    for contender in contenders:
        if not contender.takes(workload):
            continue
        try:
            prepared[contender.name] = contender.prepare(operands, timer, method.calls(workload))
        except (RuntimeError, ValueError, TypeError, WrongResult) as error:
            failures[contender.name] = first_line(error)
            timer.clear()
    rounds: dict[str, list[float]] = {name: [] for name in prepared}
    try:
        _alternate(prepared, rounds, method)
    finally:
        for ready in prepared.values():
            ready.close()
    return Measurement(workload=workload, samples={name: sample(us) for name, us in rounds.items()}, failures=failures)


def _alternate(prepared: dict[str, Prepared], rounds: dict[str, list[float]], method: Rounds) -> None:
    running = list(prepared)
    for turn in range(method.rounds):
        for name in shuffled(running, turn):
            rounds[name].append(prepared[name].round())
        if turn == 0 and method.give_up_ratio is not None and running:
            limit = method.give_up_ratio * min(rounds[name][0] for name in running)
            running = [name for name in running if rounds[name][0] <= limit]
