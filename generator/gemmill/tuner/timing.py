"""Timing calls on the device, by CUDA graph."""

import math
import random
import time
from collections.abc import Callable, Sequence

import torch

from gemmill.tuner.workloads import Workload

Call = Callable[[], object]

FEWEST_CALLS = 20
"""The fewest calls in a graph, which spread the gap between graphs over many."""
LEAD_CYCLES = 300_000
"""Cycles, about 150 us, that keep the GPU busy while the host enqueues events and graph, so that the time excludes
them.
"""
STEADY_FROM_US = 30.0
STEADY_US = 8_000.0
"""Calls of 30 us and more may be limited by power, so they run untimed for 8 ms first. Each contender then runs at the
clocks that it causes itself, not at those that the one before it left behind.
"""
TIMED_SHARE = 5
"""The inverse share of untimed replays that run again timed."""
SETTLE_SECONDS = 3.0

SHORT_GRAPH_US = 300.0
FEWEST_SHORT_CALLS = 4
FP8_FLOPS, BYTES_PER_S = 1.4e15, 4.2e12
"""Rates that an H200 reaches, from which to guess how many calls make a round of useful length."""


def shuffled(names: Sequence[str], turn: int) -> list[str]:
    """The order of a round: another in each round, and the same in every run.

    Where power limits the clocks, a kernel's time depends on how much the one before it drew. A candidate that always
    follows the same one gains or loses by it (7 % at 8192 x 28672 x 4096, H200, 2026-11-20).
    """
    return random.Random(turn).sample(list(names), len(names))  # noqa: S311  (an order, no secret)


def calls_in_round(workload: Workload) -> int:
    """The fewest calls of a round of a sweep. Long workloads have few."""
    guess_us = max(workload.flops / FP8_FLOPS, workload.bytes / BYTES_PER_S) * 1e6 + 3.0
    return int(min(FEWEST_CALLS, max(FEWEST_SHORT_CALLS, SHORT_GRAPH_US // guess_us)))


class Graph:
    """Calls in turn, timed by CUDA events around a CUDA graph of at least `fewest` of them."""

    def __init__(self, calls: Sequence[Call], fewest: int = FEWEST_CALLS) -> None:
        # Whole turns over the copies, so that each round reads the same ones.
        turns = -(-fewest // len(calls))
        self._calls = turns * len(calls)
        self._captured = tuple(calls)  # A graph has addresses of their operands and keeps none of them alive.
        calls[0]()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for _ in range(turns):
                for call in calls:
                    call()
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._untimed = 0
        us = self.round()
        if us >= STEADY_FROM_US:
            self._untimed = math.ceil(STEADY_US / (us * self._calls))

    def round(self) -> float:
        """Microseconds of one call."""
        timed = max(1, self._untimed // TIMED_SHARE)
        if not self._untimed:
            torch.cuda._sleep(LEAD_CYCLES)
        for _ in range(self._untimed):
            self._graph.replay()
        self._start.record()
        for _ in range(timed):
            self._graph.replay()
        self._end.record()
        self._end.synchronize()
        return self._start.elapsed_time(self._end) * 1e3 / (timed * self._calls)

    def close(self) -> None:
        """Give back the graph and the operands that it kept."""
        self._graph.reset()
        self._captured = ()


def settle(call: Call) -> float:
    """Warm up until the time of a call stops changing; returns the seconds that took."""
    graph = Graph([call])
    start, last = time.perf_counter(), float("inf")
    while (now := time.perf_counter()) - start < SETTLE_SECONDS:
        while time.perf_counter() - now < SETTLE_SECONDS / 10:
            found = graph.round()
        if abs(found - last) < 0.005 * found:
            break
        last = found
    graph.close()
    return time.perf_counter() - start
