"""Grouped GEMMs in the benchmarks: DeepGEMM's two forms are laid out as they want rows, and looked at."""

from types import SimpleNamespace

import pytest
import torch

from gemmill.compat import deep_gemm
from harness.contenders import WrongResult
from harness.deep_gemm_experts import forms_of
from timed.moe import MoeMaker, MoeWorkload

WORKLOAD = MoeWorkload(kind="fp8_groups", experts=4, top=2, n=128, k=256, tokens=9, routing="random")


class Once:
    """A timer that makes each call once."""

    def prepare(self, calls, fewest):
        return [call() for call in calls]


@pytest.mark.parametrize("form", [0, 1])
def test_deep_gemms_forms_are_given_what_they_want(form: int) -> None:
    contender = forms_of(deep_gemm)[form]  # gemmill's ops under its names stand in for it
    x = MoeMaker(torch.device("cpu"), 1).make(WORKLOAD)
    assert contender.takes(WORKLOAD) and len(contender.prepare(x, Once(), 1)) == x.copies
    laid = contender.lay(x, 0)
    laid.call()
    assert all(begin % 128 == 0 for begin in laid.begins) and laid.out.shape[1] == 128


def test_a_wrong_result_is_not_timed() -> None:
    def wrong(a, b, d, *rest):
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, *rest)
        d[: len(d) // 2].neg_()

    module = SimpleNamespace(m_grouped_fp8_gemm_nt_contiguous=wrong, m_grouped_fp8_gemm_nt_masked=None)
    module.fp8_m_grouped_gemm_nt_masked = deep_gemm.m_grouped_fp8_gemm_nt_masked
    x = MoeMaker(torch.device("cpu"), 1).make(WORKLOAD)
    contiguous, masked = forms_of(module)
    masked.prepare(x, Once(), 1)
    with pytest.raises(WrongResult):
        contiguous.prepare(x, Once(), 1)
