"""How a program takes times: of the device and of the host, and a stand-in for machines without a GPU."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from gemmill.tuner.device import Monitor
from gemmill.tuner.timing import FEWEST_CALLS, STEADY_FROM_US, STEADY_US, Call, Graph, calls_in_round, settle
from gemmill.tuner.workloads import Workload
from harness.statistics import Sample, sample

HOST_CALLS = 100
"""Calls that follow one another: a stream holds 1,024 launches, then the host waits for the device. An op makes up to ten."""
HOST_ROUNDS = 49
DEVICE_TIME = (
    "CUDA graph of rotated calls between CUDA events, rounds alternating between contenders; calls of "
    f"{STEADY_FROM_US:g} us and more run untimed for {STEADY_US / 1000:g} ms before each round, so that their clocks are their own"
)
"""How GraphTimer takes times, for the reader of a program's results."""


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How carefully to measure."""

    rounds: int
    short: bool = False
    """Few calls of long workloads in a round: for sweeps"""
    give_up_ratio: float | None = None
    """After the first round, contenders slower than this many times the best are dropped."""

    def calls(self, workload: Workload) -> int:
        """Fewest calls in one round."""
        return calls_in_round(workload) if self.short else FEWEST_CALLS


class Prepared(Protocol):
    """A contender ready to be timed on one workload; keeps the operands of its calls until it is closed."""

    def round(self) -> float:
        """One measurement: microseconds of device time a call."""
        ...

    def close(self) -> None:
        """Frees the memory of preparation."""
        ...


class Timer(Protocol):
    """How durations are measured on a kind of machine."""

    def prepare(self, calls: Sequence[Call], fewest: int) -> Prepared:
        """Make calls[0], calls[1], ... in turn ready to be timed, at least `fewest` calls in a round."""
        ...

    def host_us(self, call: Call) -> Sample:
        """Time until a call returns, when the device does not hold it up."""
        ...

    def settle(self, call: Call) -> float:
        """Warm up until the time of a call stops changing; returns the seconds that took."""
        ...

    def clear(self) -> None:
        """Wait for the device and forget a failed call."""
        ...


class GraphTimer:
    """CUDA events around a CUDA graph."""

    def prepare(self, calls: Sequence[Call], fewest: int) -> Prepared:
        return Graph(calls, fewest)

    def host_us(self, call: Call) -> Sample:
        rounds = []
        for _ in range(HOST_ROUNDS + 1):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(HOST_CALLS):
                call()
            rounds.append((time.perf_counter() - start) / HOST_CALLS * 1e6)
        torch.cuda.synchronize()
        return sample(rounds[1:])

    def settle(self, call: Call) -> float:
        return settle(call)

    def clear(self) -> None:
        torch.cuda.synchronize()


class DryTimer:
    """Runs every call once, on any machine, and invents the times: the n-th contender prepared takes n us."""

    def __init__(self) -> None:
        self._prepared = 0

    def prepare(self, calls: Sequence[Call], fewest: int) -> Prepared:
        for call in calls:
            call()
        self._prepared += 1
        return _Invented(float(self._prepared))

    def host_us(self, call: Call) -> Sample:
        call()
        return sample([2.0, 3.0, 4.0])

    def settle(self, call: Call) -> float:
        call()
        return 0.0

    def clear(self) -> None:
        """Nothing runs behind the host's back."""


class _Invented:
    def __init__(self, us: float) -> None:
        self._us = us
        self._rounds = 0

    def round(self) -> float:
        self._rounds += 1
        return self._us * (1 + 0.01 * (self._rounds % 3))

    def close(self) -> None:
        """Nothing was taken."""


def of_this_gpu() -> Monitor:
    """A monitor of the GPU that this process uses first."""
    return Monitor.of(str(torch.cuda.get_device_properties(0).uuid) if torch.cuda.is_available() else None)
