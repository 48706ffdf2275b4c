"""int8 GEMMs with zero points of weights: results, how far they are exact, refusals, and kernels."""

from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.families.scaled_mm import own, selections
from gemmill.families.scaled_mm.accepts import ops_of
from gemmill.families.scaled_mm.cases import own as cases
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Arch, Backend, DType

OP = "scaled_mm_zero_points"
KEY = "scaledmmzeropointsx7974b6fab998"
M, N, K = 5, 24, 48


def kernels(select: Any) -> list[own.OwnConfig]:
    return [config for config in select(Arch.SM90A) if isinstance(config, own.OwnConfig)]


def codes(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.randint(-128, 128, (rows, columns), dtype=torch.int8, generator=generator)


def points(count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(-128, 128, (count,), dtype=torch.int32, generator=generator)


def corrected(a: Tensor, b: Tensor, b_zp: Tensor, azp: Tensor | None) -> dict[str, Tensor]:
    """The vectors that a call is given of zero points, by name: azp has one value for the tensor, or one for each row."""
    given = {"a_sums": a.sum(dim=1, dtype=torch.int32), "b_zp": b_zp}
    if azp is not None:
        sums = b.sum(dim=0, dtype=torch.int32) - a.shape[1] * b_zp
        given |= {"azp_adj": sums, "azp": azp} if azp.numel() > 1 else {"azp_adj": azp * sums}
    return given


@pytest.mark.parametrize("of_a", ["none", "tensor", "token"])
@pytest.mark.parametrize("of_b", ["tensor", "channel"])
@pytest.mark.parametrize("bias", [False, True])
def test_it_is_the_product_of_what_codes_stand_for(of_a: str, of_b: str, bias: bool) -> None:
    """Scales are powers of two: the result is the exact one, rounded once."""
    generator = torch.Generator().manual_seed(4)
    a, b = codes(M, K, generator), codes(N, K, generator).t()
    b_zp = points(N if of_b == "channel" else 1, generator)
    azp = None if of_a == "none" else points(M if of_a == "token" else 1, generator)
    scales = 2.0 ** -torch.arange(M).reshape(-1, 1), 2.0 ** (torch.arange(N).reshape(1, -1) % 7)
    added = torch.randint(-9, 9, (N,), generator=generator).bfloat16() if bias else None
    shifted = a.double() - (0 if azp is None else azp.reshape(-1, 1))
    exact = shifted @ (b.double() - b_zp) * scales[0] * scales[1] + (0 if added is None else added.double())
    found = gemmill.scaled_mm_zero_points(a, b, *scales, torch.bfloat16, bias=added, **corrected(a, b, b_zp, azp))
    assert found.abs().max() > 1000 and torch.equal(found, exact.float().bfloat16())


def test_row_sums_are_computed_where_none_are_given() -> None:
    generator = torch.Generator().manual_seed(5)
    a, b, b_zp = codes(M, K, generator), codes(N, K, generator).t(), points(N, generator)
    scales = torch.rand(M, 1, generator=generator), torch.rand(1, N, generator=generator)
    found = gemmill.scaled_mm_zero_points(a, b, *scales, torch.float16, b_zp)
    sums = a.sum(dim=1, dtype=torch.int32)
    assert torch.equal(found, gemmill.scaled_mm_zero_points(a, b, *scales, torch.float16, b_zp, sums))
    # Of an a without zero points, the correction is an outer product, as that of zero points of a.
    assert torch.equal(found, gemmill.cutlass_scaled_mm_azp(a, b, *scales, torch.float16, b_zp, sums))


@pytest.mark.parametrize(("k", "is_exact"), [(33_025, True), (33_026, False)])
def test_int32_holds_every_sum_up_to_a_k(k: int, is_exact: bool) -> None:
    """Codes and zero points as far apart as they can be: 255^2 for each k."""
    a, b = torch.full((1, k), -128, dtype=torch.int8), torch.full((k, 8), -128, dtype=torch.int8)
    b_zp = azp = torch.full((1,), 127, dtype=torch.int32)
    one = torch.ones(1)
    given = corrected(a, b.t().contiguous().t(), b_zp.expand(8).contiguous(), azp)
    found = gemmill.scaled_mm_zero_points(a, b.t().contiguous().t(), one, one, torch.bfloat16, **given)
    assert bool((found.double() > 0).all()) is is_exact
    assert not is_exact or torch.equal(found, torch.full((1, 8), float(255**2 * k)).bfloat16())


def arguments(**changed: Any) -> list[Any]:
    given: dict[str, Any] = {
        "out": torch.full((M, N), 7, dtype=torch.bfloat16),
        "a": torch.zeros(M, K, dtype=torch.int8),
        "b": torch.zeros(N, K, dtype=torch.int8).t(),
        "a_scales": torch.ones(M, 1),
        "b_scales": torch.ones(1, N),
        "a_sums": torch.zeros(M, dtype=torch.int32),
        "b_zp": torch.zeros(N, dtype=torch.int32),
        "azp_adj": None,
        "azp": None,
        "bias": None,
    }
    return list((given | changed).values())


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"azp": torch.zeros(M, dtype=torch.int32)}, "azp is given and azp_adj is not: azp has no effect without it, so give both, or neither"),
        ({"b_zp": torch.zeros(N, dtype=torch.int8)}, "b_zp is int8, expected int32"),
        ({"b_zp": torch.zeros(3, dtype=torch.int32)}, "b_zp has shape [3] and strides [1]: there is one value, or one for each of 24 columns, without gaps"),
        ({"a_sums": torch.zeros(N, dtype=torch.int32)}, "a_sums has shape [24] and strides [1]: there is one value, or one for each of 5 rows, without gaps"),
        ({"azp_adj": torch.zeros(N)}, "azp_adj is float32, expected int32"),
        ({"bias": torch.zeros(N)}, "bias is float32, expected bfloat16"),
        ({"a": torch.zeros(M, K).to(torch.float8_e4m3fn)}, "a is float8_e4m3fn, expected int8"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_is_written(changed: dict[str, Any], sentence: str) -> None:
    given = arguments(**changed)
    with pytest.raises(RuntimeError) as told:
        getattr(torch.ops.gemmill, OP)(*given)
    assert str(told.value) == f"{OP}: {sentence}"
    assert (given[0] == 7).all()


def test_its_name_and_steps_are_those_of_names_that_were_given_out() -> None:
    assert list(own.BUILT_IN) == [KEY], "another key is another kernel: names, tables and builds have this one"
    assert REGISTRY.ops[OP][1].schema.schema == (
        f"{OP}(Tensor(a!) out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor a_sums, Tensor b_zp, "
        "Tensor? azp_adj=None, Tensor? azp=None, Tensor? bias=None) -> ()"
    )


def test_kernels_of_both_compilers_are_in_default() -> None:
    found = kernels(selections.default)
    for config in found:
        assert ops_of(config) == (OP,) and parse_name(to_name(config)) == config
        assert REGISTRY.check(config), REGISTRY.check(config).reason
    kinds = {(config.backend, config.operands.out_dtype) for config in found}
    of_dsl = {(Backend.CUTEDSL, out) for out in (DType.BF16, DType.F16)}
    assert kinds == of_dsl | {(Backend.CUTLASS, DType.BF16)}
    assert len({config.compiled for config in found}) <= 40
    assert {config.backend for config in kernels(selections.nvcc)} == {Backend.CUTLASS}
    assert {config.backend for config in kernels(selections.smoke)} == set(Backend)


def test_cases_leave_out_what_may_be_left_out() -> None:
    made = list(cases.of_config(kernels(selections.smoke)[0]))
    assert {case.vectors for case in made} == {"each", "one", "few"}
    for case in made:
        assert (case.arguments("cpu")[7:] == [None] * 3) is (case.vectors == "few"), str(case)
        assert case.product.k > 1024 or case.run("cpu").report == "", str(case)
