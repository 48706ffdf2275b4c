"""Autograd's view of calls on CPU tensors: refusals and writes."""

import pytest
import torch

import gemmill
from gemmill.runtime.schemas import OPS, OpSchema
from whole_calls import check_refusals, check_saved_tensors, check_versions

every_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


@every_op
def test_tensors_that_require_grad_are_refused(op: OpSchema) -> None:
    check_refusals(torch.ops.gemmill, op)


@every_op
def test_written_tensors_have_another_version(op: OpSchema) -> None:
    check_versions(torch.ops.gemmill, op)


def test_saved_tensors_are_guarded() -> None:
    check_saved_tensors(torch.ops.gemmill, OPS[0])


def test_functions_refuse_too() -> None:
    x = torch.ones(2, 64, requires_grad=True)
    with pytest.raises(RuntimeError, match="input requires grad while grad mode is enabled"):
        gemmill.dynamic_scaled_fp8_quant(x)
    with torch.no_grad():
        assert not gemmill.dynamic_scaled_fp8_quant(x)[1].requires_grad
    assert not gemmill.dynamic_scaled_fp8_quant(x.detach())[1].requires_grad
