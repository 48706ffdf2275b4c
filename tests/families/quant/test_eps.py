"""Which smallest maximum, and which addend of a mean square, an op may be given."""

import pytest
import torch

from gemmill.families.quant.contract import SCHEMAS as QUANT_SCHEMAS
from gemmill.runtime.schemas import OpSchema
from whole_calls import versions, whole_call

told = [op for op in QUANT_SCHEMAS if {"eps", "epsilon"} & set(op.arguments)]


@pytest.mark.parametrize("value", [-1e-10, -1.0, float("-inf"), float("nan")])
@pytest.mark.parametrize("op", told, ids=lambda op: op.name)
def test_what_is_not_0_or_more_is_refused(op: OpSchema, value: float) -> None:
    call = whole_call(op)
    call["eps" if "eps" in call else "epsilon"] = value
    before = versions(call)
    with pytest.raises(RuntimeError) as caught:
        getattr(torch.ops.gemmill, op.name).default(*call.values())
    assert str(caught.value) == f"{op.name}: eps is {value}, expected 0 or more"
    assert versions(call) == before


@pytest.mark.parametrize("value", [0.0, 1e-10, 1.0])
@pytest.mark.parametrize("op", told, ids=lambda op: op.name)
def test_what_is_0_or_more_is_taken(op: OpSchema, value: float) -> None:
    call = whole_call(op)
    call["eps" if "eps" in call else "epsilon"] = value
    getattr(torch.ops.gemmill, op.name).default(*call.values())


def test_ops_that_are_told_are_found() -> None:
    assert {"per_token_group_fp8_quant", "rms_norm_per_block_quant"} <= {op.name for op in told}
