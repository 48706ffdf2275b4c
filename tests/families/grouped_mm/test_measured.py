"""Operands of the measured calls of grouped GEMMs, and the references of their results."""

import pytest
import torch

from gemmill.families.grouped_mm.cases.measured import GroupedMaker
from gemmill.families.grouped_mm.selections import default
from gemmill.families.grouped_mm.sweep import SWEEP, MeasuredOp
from gemmill.families.grouped_mm.tuning import TUNING
from gemmill.numerics.measured import results_of
from gemmill.tuner.workloads import workload_of
from gemmill.vocab import Arch

SIZES = {"m": 37, "n": 48, "k": 288, "experts": 6}


@pytest.mark.parametrize("op", MeasuredOp)
@pytest.mark.parametrize("exactly", [False, True])
def test_operands_are_computed_right_and_wrong_ones_are_seen(op: MeasuredOp, exactly: bool) -> None:
    maker = GroupedMaker(torch.device("cpu"))
    x = maker.make(workload_of(op, SIZES))
    if exactly:
        x = maker.exact(x)
        if x is None:
            assert op is MeasuredOp.INT8, "integers are exact as they are"
            return
    assert x.copies == 6 and all(int(offsets[-1]) == 37 and int(offsets.diff().max()) == 7 for offsets in x.offsets)
    assert len({tuple(offsets.tolist()) for offsets in x.offsets}) > 1, "routings differ"
    expected = x.expected()
    result = results_of(x, getattr(torch.ops.gemmill, x.op).default(*x.arguments(0)))
    assert expected.compare(result).ok
    last = int(x.offsets[0][-1]) - 1
    result["out"][last] = -result["out"][last] + 3
    assert not expected.compare(result).ok
    result["out"][last] = torch.nan
    assert expected.compare(result).unwritten


@pytest.mark.parametrize("op", MeasuredOp)
def test_each_class_is_known_by_its_calls_and_has_variants(op: MeasuredOp) -> None:
    measured = next(x for x in SWEEP.measured if x.name == op)
    call = measured.call(SIZES)
    assert call.alignments == (16, 16, 16) and TUNING.measured_as(call) == op
    assert measured.call(SIZES | {"n": 12}).alignments[2] == 8
    offered = [config for config in default(Arch.SM90A) if call.call_class in TUNING.offers(config)]
    assert len(offered) >= 4 and {(c.operand_dtype, c.group_size, c.format) for c in offered} == {
        (op.dtype, op.group_size, op.weights)
    }
    assert all(op.indexed in c.gathers for c in offered)
    of_weight = op.dtype.bits / 8 if op.weights is None else float(op.weights.bytes_per_value)
    assert measured.bytes(SIZES) == int(6 * 48 * 288 * of_weight) + 37 * 288 * op.dtype.bits // 8 + 2 * 37 * 48
