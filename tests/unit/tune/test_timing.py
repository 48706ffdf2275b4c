"""The order of a round, and its timed part."""

import gc
import weakref

import pytest
import torch

from gemmill.tuner.timing import Graph, shuffled


def test_nobody_always_follows_the_same_one() -> None:
    names = ["a", "b", "c", "d", "e"]
    orders = [shuffled(names, turn) for turn in range(9)]
    assert all(sorted(order) == names for order in orders)
    assert orders == [shuffled(names, turn) for turn in range(9)], "the same in every run"
    for name in names:
        before = [order[order.index(name) - 1] for order in orders if order[0] != name]
        assert len(set(before)) >= 3, name


class FakeDevice:
    """Graphs of calls that take `us` each, and a clock that they move on."""

    def __init__(self, us: float) -> None:
        self.us, self.now, self.calls, self.replays = us, 0.0, 0, []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        device = self

        class Graph:
            def replay(self) -> None:
                device.now += device.us * device.calls
                device.replays.append(device.now)

            def reset(self) -> None:
                """Nothing was captured."""

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                self.at = 0.0

            def record(self) -> None:
                self.at = device.now

            def synchronize(self) -> None:
                """Nothing runs."""

            def elapsed_time(self, end: "Event") -> float:
                return (end.at - self.at) * 1e-3

        class Capture:
            def __init__(self, graph: Graph) -> None:
                device.calls = 0

            def __enter__(self) -> None:
                """Calls are counted from here on."""

            def __exit__(self, *error: object) -> None:
                """And are known now."""

        for name, value in (("CUDAGraph", Graph), ("Event", Event), ("graph", Capture)):
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)

    def call(self) -> None:
        self.calls += 1


@pytest.mark.parametrize(("us", "untimed", "timed"), [(5.0, 0, 1), (50.0, 40, 8), (2000.0, 1, 1)])
def test_long_calls_run_at_their_own_clocks_before_they_are_timed(us, untimed, timed, monkeypatch) -> None:
    device = FakeDevice(us)
    device.install(monkeypatch)
    prepared = Graph([device.call], 4)
    device.replays.clear()
    assert prepared.round() == pytest.approx(us)
    assert len(device.replays) == untimed + timed


def test_what_calls_read_stays_until_they_are_timed_no_more(monkeypatch) -> None:
    device = FakeDevice(5.0)
    device.install(monkeypatch)
    operand = torch.empty(1)
    alive = weakref.ref(operand)
    prepared = Graph([lambda operand=operand: device.call()], 4)
    del operand
    gc.collect()
    assert alive() is not None, "a replay would read memory that was given back"
    prepared.close()
    gc.collect()
    assert alive() is None
