"""Autograd's view of the ops on a GPU, and calls of which one operand has no data."""

import re

import pytest
import torch

from gemmill.families.scaled_mm.ops import GEMM_OPS
from gemmill.runtime.schemas import OPS, OpSchema
from whole_calls import check_refusals, check_saved_tensors, check_versions, moved, whole_call

_LACKS = re.compile(r" lacks |: none of \d+ variants of .* takes ")
every_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


@pytest.fixture(autouse=True)
def _left_out_where_the_build_lacks_the_variant(op: OpSchema, device) -> None:
    try:
        getattr(torch.ops.gemmill, op.name).default(*whole_call(op, device).values())
    except RuntimeError as error:
        if not _LACKS.search(str(error)):
            raise
        pytest.skip(str(error))


@every_op
def test_tensors_that_require_grad_are_refused(op: OpSchema, device) -> None:
    check_refusals(torch.ops.gemmill, op, device)


@every_op
def test_written_tensors_have_another_version(op: OpSchema, device) -> None:
    check_versions(torch.ops.gemmill, op, device)


@pytest.mark.parametrize("op", GEMM_OPS, ids=lambda op: op.name)
def test_saved_tensors_are_guarded(op: OpSchema, device) -> None:
    check_saved_tensors(torch.ops.gemmill, op, device)


@every_op
def test_one_meta_operand_is_refused(op: OpSchema, device) -> None:
    for name in [name for name, value in whole_call(op, device).items() if isinstance(value, torch.Tensor)]:
        call = whole_call(op, device)
        call[name] = moved(call[name], "meta")
        with pytest.raises(RuntimeError, match=f"^{op.name}: .* on meta.*: all tensors must be on one device"):
            getattr(torch.ops.gemmill, op.name).default(*call.values())
