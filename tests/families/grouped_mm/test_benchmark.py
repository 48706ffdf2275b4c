"""Grouped GEMMs in the benchmarks: DeepGEMM's two forms are laid out as they want rows, and looked at."""

from argparse import Namespace
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from gemmill.compat import deep_gemm
from harness.contenders import WrongResult
from harness.deep_gemm_experts import forms_of
from timed.grouped_mm.calls import KINDS, MoeMaker, rows_of, workloads_of

WORKLOAD = KINDS["fp8_groups"].at(experts=4, top=2, n=128, k=256, tokens=9, routing="random")


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


OPTIONS = Namespace(op="fp8,fp8_groups", routing="random,skewed", layers=None, tokens=None, draw=7, draws=5)


def test_drawn_layers_are_the_same_for_a_seed_and_for_all_kinds() -> None:
    found = workloads_of(OPTIONS)
    assert found == workloads_of(OPTIONS) != workloads_of(Namespace(**vars(OPTIONS) | {"draw": 8}))
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert len(pairs) == 5 and all(replace(b, of=KINDS["fp8"]) == a for a, b in pairs)
    assert all(p.n % 128 == p.k % 128 == 0 and p.experts * p.n * p.k <= 1 << 30 for p in found)
    assert {p.routing for p in found} == {"random", "skewed"}


def test_skewed_routings_have_favourites() -> None:
    counts = {}
    for routing in ("even", "random", "skewed"):
        p = KINDS["fp8"].at(experts=16, top=2, n=64, k=64, tokens=512, routing=routing)
        offsets = MoeMaker(torch.device("cpu"), 1).make(p).offsets[0]
        assert int(offsets[-1]) == rows_of(p)
        counts[routing] = int(offsets.diff().max())
    assert counts["even"] <= 64 < counts["random"] < 100 < counts["skewed"]


def test_layers_are_read() -> None:
    options = Namespace(**vars(OPTIONS) | {"draw": None, "layers": "4x2x64x128", "tokens": "3", "routing": "even"})
    assert [(p.kind, p.experts, p.top, p.n, p.k, p.tokens) for p in workloads_of(options)] == [
        ("fp8", 4, 2, 64, 128, 3),
        ("fp8_groups", 4, 2, 64, 128, 3),
    ]
    with pytest.raises(ValueError, match=r"^layer \(4, 2\) has 2 numbers, expected experts x top x N x K$"):
        workloads_of(Namespace(**vars(options) | {"layers": "4x2"}))
