"""Cases of the GEMM ops: that they cover a variant's calls, and find wrong results."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from gemmill.families.scaled_mm.accepts import accepted
from gemmill.families.scaled_mm.cases import checked
from gemmill.families.scaled_mm.cases.calls import CallSpec
from gemmill.families.scaled_mm.cases.checked import GemmCase, specs_of
from gemmill.families.scaled_mm.reference import scaled_mm
from gemmill.numerics.cases import CaseOutcome
from gemmill.vocab import Accumulation, Backend, DType, EpilogueKind, KernelSchedule


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"epilogue": EpilogueKind.SCALED},
        {"a_dtype": DType.S8, "epilogue": EpilogueKind.SCALED_AZP},
        {"a_dtype": DType.S8, "epilogue": EpilogueKind.SCALED_AZP_PER_TOKEN},
        {"kernel_schedule": KernelSchedule.MMA_SYNC},
    ],
)
def test_cases_cover_what_a_variant_takes_and_nothing_else(make_config, changes: dict) -> None:
    predicate = accepted(make_config(**changes))
    specs = list(specs_of(predicate))
    kinds = ("each", "one")
    assert {(p.a_scale, p.b_scale, p.bias, p.azp) for p in specs} == set(
        product(kinds, kinds, (True, False) if predicate.bias else (False,), predicate.azp)
    )
    for p in specs:
        assert p.k % predicate.alignment_a == p.k % predicate.alignment_b == p.n % predicate.alignment_d == 0
    assert any(p.k % 16 for p in specs) == (predicate.alignment_a == 1)


def test_cases_are_rounded_up_to_the_alignment(make_config) -> None:
    predicate = replace(accepted(make_config()), alignment_b=96, alignment_d=40)
    assert all(p.k % 96 == p.n % 40 == 0 for p in specs_of(predicate))


@pytest.fixture
def run(monkeypatch) -> Callable[..., CaseOutcome]:
    """Runs a case with another function in the ops' place, with the reference's arguments."""

    def run(case: GemmCase, multiply: Callable) -> CaseOutcome:
        def plain(out, a, b, a_scales, b_scales, bias):
            multiply(out, a, b, a_scales, b_scales, bias, None, None)

        def azp(out, a, b, a_scales, b_scales, azp_adj, azp, bias):
            multiply(out, a, b, a_scales, b_scales, bias, azp_adj, azp)

        ops = SimpleNamespace(
            cutlass_scaled_mm=SimpleNamespace(default=plain), cutlass_scaled_mm_azp=SimpleNamespace(default=azp)
        )
        monkeypatch.setattr(checked, "NAMESPACE", "others")
        monkeypatch.setattr(torch.ops, "others", ops, raising=False)
        return case.run("cpu")

    return run


def case_of(accumulation: Accumulation = Accumulation.FAST, **settings) -> GemmCase:
    return GemmCase(spec=CallSpec(**{"m": 17, "n": 16, "k": 64} | settings), accumulation=accumulation)


def right(out, a, b, a_scales, b_scales, bias, azp_adj, azp) -> None:
    out.copy_(scaled_mm(a, b, a_scales, b_scales, out.dtype, bias, azp_adj, azp))


@pytest.mark.parametrize(
    ("dtype", "azp"), [(DType.E4M3, "none"), (DType.S8, "none"), (DType.S8, "row"), (DType.S8, "token")]
)
def test_a_wrong_result_is_found(run, dtype: DType, azp: str) -> None:
    """One element of a bad kernel is off by its own size."""
    accumulation = Accumulation.FAST if dtype.is_float else Accumulation.EXACT
    case = case_of(accumulation, a_dtype=dtype, b_scale="one", bias=azp != "none", azp=azp)
    assert run(case, right).report == ""

    def spoil(out, *operands) -> None:
        right(out, *operands)
        out[3, 5] = out[3, 5] * 2 + 1

    report = run(case, spoil).report
    assert report.startswith("1 of 272 elements are wrong") and "[3, 5]" in report


@pytest.mark.parametrize("k", [4096, 14336, 32768])
@pytest.mark.parametrize("dtype", [DType.E4M3, DType.BF16])
def test_long_sums_that_lack_a_little_are_found(make_config, run, dtype: DType, k: int) -> None:
    """The last 128 products, or a tenth: within the tolerance of random e4m3 operands, not of exact ones."""
    predicate = accepted(make_config(a_dtype=dtype, **({} if dtype is DType.E4M3 else {"backend": Backend.CUTEDSL})))
    (spec,) = [p for p in specs_of(predicate) if p.k == k]
    assert spec.data == "integers" and str(spec).endswith("; exact")
    case = GemmCase(spec=spec, accumulation=Accumulation.FAST)
    assert run(case, right).report == ""

    def short(out, a, b, *rest) -> None:
        right(out, a[:, :-128], b[:-128], *rest)

    def scaled(out, a, b, a_scales, *rest) -> None:
        right(out, a, b, 0.9 * a_scales, *rest)

    for wrong in (short, scaled):
        assert int(run(case, wrong).report.split(" of ")[0]) > spec.m * spec.n / 2


def test_an_output_that_is_not_written_is_found(run) -> None:
    case = case_of(Accumulation.EXACT, m=4, k=16, a_dtype=DType.S8, out_dtype=DType.F16)
    assert run(case, lambda *_: None).report.startswith("64 of 64 elements are wrong")


def test_what_is_written_around_a_result_is_found(run) -> None:
    def beyond(out, *operands) -> None:
        right(out, *operands)
        out.as_strided((1,), (1,), out.storage_offset() + out.numel() + 3).zero_()

    assert run(case_of(), beyond).report == "elements outside the result were written"


def test_a_case_says_what_it_is() -> None:
    assert str(case_of(b_scale="one", bias=True)) == (
        "M, N, K = 17, 16, 64; a_scales [M, 1], b_scales [1]; bias yes; azp none"
    )
