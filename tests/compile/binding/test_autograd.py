"""Autograd sees the same of the extension's calls as of the reference's, on CPU tensors."""

import pytest
import torch

from gemmill.doctor.elf import read_library
from gemmill.doctor.extension import torch_libraries, undefined_in
from gemmill.families.scaled_mm.ops import GEMM_OPS
from gemmill.runtime.schemas import OPS, OpSchema
from whole_calls import check_refusals, check_saved_tensors, check_versions, whole_call

every_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


@every_op
def test_tensors_that_require_grad_are_refused(op: OpSchema, probe) -> None:
    check_refusals(probe.ops, op)


@every_op
def test_written_tensors_have_another_version(op: OpSchema, probe) -> None:
    check_versions(probe.ops, op)


@pytest.mark.parametrize("op", GEMM_OPS, ids=lambda op: op.name)
def test_saved_tensors_are_guarded(op: OpSchema, probe) -> None:
    check_saved_tensors(probe.ops, op)


def test_this_torch_has_the_names_that_are_asked_for(home_of_probes) -> None:
    """They are C++ names, which a later torch may not have: gradients would then be dropped unseen."""
    library = read_library(next(home_of_probes.glob("builds/*/*.so")))
    asked = {name for name in library.optional if name.startswith("_Z") and "gemmill" not in name}
    assert any("bump_version" in name for name in asked)
    assert not undefined_in(library, torch_libraries(), frozenset(asked))


def test_tensors_of_inference_mode_are_written_outside_it(probe) -> None:
    """They have no version to count."""
    with torch.inference_mode():
        call = whole_call(GEMM_OPS[0])
    assert probe.run(GEMM_OPS[0].name, *call.values()) is not None
