"""Rounds that alternate, contenders that fail or give wrong results, and the numbers made of them."""

import re
from dataclasses import replace

import pytest
import torch

from gemmill.families.scaled_mm.cases.measured import GemmMaker
from gemmill.numerics.measured import through
from gemmill.tuner.peers import vllm_takes
from gemmill.tuner.timing import shuffled
from gemms import MeasuredOp, gemm
from harness.contenders import LocalContender, of_classes, ops_contender
from harness.measuring import measure
from harness.statistics import geometric_mean, sample
from harness.timers import Rounds


class ScriptedTimer:
    """Rounds with given times, and a log of who ran."""

    def __init__(self, **us):
        self.us, self.log, self.closed, self.order = us, [], 0, iter(us)

    def prepare(self, calls, fewest):
        name = next(self.order)
        for call in calls:
            call()
        return ScriptedRounds(self, name)

    def clear(self):
        self.log.append("clear")


class ScriptedRounds:
    def __init__(self, timer, name):
        self.timer, self.name = timer, name

    def round(self):
        self.timer.log.append(self.name)
        return self.timer.us[self.name]

    def close(self):
        self.timer.closed += 1


@pytest.fixture
def operands():
    return GemmMaker(torch.device("cpu"), 4096).make(gemm(op=MeasuredOp.FP8, m=16, n=32, k=64))


def contender(name, **changes):
    return replace(ops_contender("gemmill", name), **changes)


def test_each_round_has_its_own_order(operands):
    timer = ScriptedTimer(x=1.0, y=2.0)
    found = measure(operands, [contender("x"), contender("y")], timer, Rounds(rounds=3))
    assert timer.log == [name for turn in range(3) for name in shuffled(["x", "y"], turn)]
    assert found.samples["y"].rounds_us == (2.0, 2.0, 2.0)
    assert timer.closed == 2


def test_slow_contenders_are_dropped_after_the_first_round(operands):
    timer = ScriptedTimer(x=1.0, y=1.4, z=1.6)
    method = Rounds(rounds=5, give_up_ratio=1.5)
    found = measure(operands, [contender(name) for name in "xyz"], timer, method)
    assert {name: len(s.rounds_us) for name, s in found.samples.items()} == {"x": 5, "y": 5, "z": 1}


def test_a_wrong_result_is_not_timed(operands):
    def off_by_one_row(x, i):
        def call():
            through(torch.ops.gemmill)(x, i)()
            x.out.copy_(x.out.roll(1, 0))

        return call

    timer = ScriptedTimer(right=1.0)
    found = measure(operands, [contender("wrong", bind=off_by_one_row), contender("right")], timer, Rounds(rounds=1))
    assert list(found.samples) == ["right"]
    assert re.match(r"wrong result of fp8 16 x 32 x 64: \d+ of 512 elements", found.failures["wrong"])


def test_a_result_that_is_not_written_is_wrong(operands):
    found = measure(operands, [contender("lazy", bind=lambda x, i: lambda: None)], ScriptedTimer(), Rounds(rounds=1))
    assert "elements are wrong" in found.failures["lazy"]


def test_a_failing_contender_costs_its_own_figures_only(operands):
    def refuse(x, i):
        raise RuntimeError("not on this device\nsecond line")

    timer = ScriptedTimer(other=1.0)
    found = measure(operands, [contender("refuser", bind=refuse), contender("other")], timer, Rounds(rounds=1))
    assert found.failures == {"refuser": "not on this device"}
    assert list(found.samples) == ["other"]
    assert "clear" in timer.log


def test_contenders_are_asked_what_they_take(operands):
    int8 = LocalContender(name="int8", bind=through(torch.ops.gemmill), suits=of_classes(frozenset({MeasuredOp.INT8})))
    large = contender("large", suits=lambda workload: workload.step >= 17)
    found = measure(operands, [int8, large], ScriptedTimer(), Rounds(rounds=1))
    assert found.samples == {} and found.failures == {}


def test_calls_in_a_round():
    decode, prefill = gemm(op=MeasuredOp.FP8, m=16, n=4096, k=4096), gemm(op=MeasuredOp.FP8, m=8192, n=8192, k=8192)
    assert Rounds(rounds=1).calls(decode) == Rounds(rounds=1).calls(prefill) == 20
    assert Rounds(rounds=1, short=True).calls(decode) == 20
    assert Rounds(rounds=1, short=True).calls(prefill) == 4


def test_sample():
    found = sample([3.0, 1.0, 2.0, 4.0, 5.0])
    assert (found.median_us, found.spread, found.rounds_us) == (3.0, pytest.approx(2 / 3), (3.0, 1.0, 2.0, 4.0, 5.0))
    assert sample([2.0]).spread == 0.0
    with pytest.raises(ValueError, match="no round was measured"):
        sample([])


def test_geometric_mean():
    assert geometric_mean([2.0, 0.5, 4.0]) == pytest.approx(4.0 ** (1 / 3))
    assert geometric_mean([]) is None


def test_weights_exceed_the_cache_twice_and_are_kept_for_the_same_shape():
    maker = GemmMaker(torch.device("cpu"), rotated_bytes=10_000)
    first = maker.make(gemm(op=MeasuredOp.FP8, m=4, n=32, k=64))
    assert sum(w.numel() for w in first.weights) >= 10_000
    assert not torch.equal(first.weights[0].view(torch.int8), first.weights[1].view(torch.int8))
    assert maker.make(gemm(op=MeasuredOp.FP8, m=8, n=32, k=64)).weights is first.weights
    assert maker.make(gemm(op=MeasuredOp.INT8, m=8, n=32, k=64)).weights[0].dtype is torch.int8


@pytest.mark.parametrize(
    ("op", "m", "taken"),
    [
        (MeasuredOp.FP8, 3, True),
        (MeasuredOp.FP8_GROUPS, 3, False),
        (MeasuredOp.FP8_GROUPS, 4, True),
        (MeasuredOp.FP8_GROUPS_32, 4, False),
        (MeasuredOp.BF16, 4, False),
    ],
)
def test_what_vllm_takes(op, m, taken):
    assert vllm_takes(gemm(op=op, m=m, n=32, k=256)) is taken


def test_operands_of_16_bits_are_scaled_by_one_and_count_two_bytes():
    workload = gemm(op=MeasuredOp.BF16, m=4, n=32, k=60)
    made = GemmMaker(torch.device("cpu"), rotated_bytes=10_000).make(workload)
    assert {x.dtype for x in (made.a, *made.weights, made.out)} == {torch.bfloat16}
    assert 10_000 <= sum(2 * w.numel() for w in made.weights) < 10_000 + 2 * 32 * 60
    assert made.a_scales.tolist() == made.b_scales.tolist() == [[1.0]]
    assert workload.bytes == 2 * (4 * 60 + 32 * 60 + 4 * 32)
    assert workload.call.alignments == (8, 8, 16)
