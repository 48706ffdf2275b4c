"""The tolerance against a simulation of the tensor core, and against faults that it must not hide."""

import math

import pytest
import torch

from comparisons import check_scaled_mm
from gemmill.arithmetic import half_unit_in_last_place
from gemmill.families.scaled_mm.bounds import accumulation_error, exact_scaled_mm, tolerance
from gemmill.families.scaled_mm.reference import scaled_mm
from gemmill.vocab import Accumulation


def random_e4m3(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(torch.float8_e4m3fn)


def random_scales(count: int, seed: int) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed)) + 0.5


def cut_off(x: torch.Tensor, largest: torch.Tensor, bits: int) -> torch.Tensor:
    """x without its bits from `bits` below the exponent of `largest`, as in two's complement."""
    unit = torch.exp2(torch.frexp(largest)[1].double() - 1 - bits)
    return torch.floor(x / unit) * unit


def tensor_core_sum(a: torch.Tensor, b: torch.Tensor, promoted: bool) -> torch.Tensor:
    """Hopper's sum, step by step. e4m3: 33 terms cut off 13 bits below the exponent of the largest; 16 bits: 17 terms cut
    off at 23 bits, and so is the result."""
    step, bits = (32, 13) if a.dtype is torch.float8_e4m3fn else (16, 23)
    a, b = a.double(), b.double()
    running = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    register = torch.zeros_like(running, dtype=torch.float32)
    for start in range(0, a.shape[1], step):
        products = a[:, start : start + step, None] * b[None, start : start + step, :]
        terms = torch.cat([running[:, None, :], products], dim=1)
        running = cut_off(terms, terms.abs().amax(dim=1, keepdim=True), bits).sum(dim=1)
        if bits == 23:
            running = cut_off(running, running.abs(), bits)
        if promoted and (start + step) % 128 == 0:
            register += running.float()
            running = torch.zeros_like(running)
    return register.double() + running


@pytest.mark.parametrize("accumulation", [Accumulation.FAST, Accumulation.PROMOTED])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("k", [1, 31, 32, 96, 512, 2048])
def test_a_simulated_tensor_core_is_within_the_bound(accumulation, positive, k):
    a, b = random_e4m3(6, k, k), random_e4m3(k, 5, k + 1)
    if positive:
        a, b = a.float().abs().to(a.dtype), b.float().abs().to(b.dtype)
    found = tensor_core_sum(a, b, accumulation is Accumulation.PROMOTED)
    error = (found - a.double() @ b.double()).abs()
    bound = accumulation_error(a, b, accumulation)
    assert (error <= bound).all()
    if k == 2048:
        assert (error > bound / 1000).any(), "the bound is not so wide that it hides everything"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("k", [1, 15, 16, 96, 2048])
def test_a_simulated_sum_of_16_bit_operands_is_within_the_bound(dtype, positive, k):
    generator = torch.Generator().manual_seed(k)
    a, b = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((6, k), (k, 5)))
    if positive:
        a, b = a.abs(), b.abs()
    error = (tensor_core_sum(a, b, False) - a.double() @ b.double()).abs()
    bound = accumulation_error(a, b, Accumulation.FAST)
    assert (error <= bound).all()
    assert (bound < 2.0**-10 * (a.double().abs() @ b.double().abs())).all(), "far below the rounding of the result"
    if k == 2048:
        assert (error > bound / 1000).any(), "the bound is not so wide that it hides everything"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_missing_product_of_16_bit_operands_is_outside_the_tolerance(dtype):
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((16, 512), (512, 16)))
    one = torch.ones(1)
    assert check_scaled_mm(scaled_mm(a, b, one, one, dtype), a, b, one, one, Accumulation.FAST).ok
    short = scaled_mm(a[:, :511], b[:511], one, one, dtype)
    assert check_scaled_mm(short, a, b, one, one, Accumulation.FAST).wrong > 100


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_alone_is_within_the_tolerance(dtype):
    a, b = random_e4m3(8, 64, 1), random_e4m3(64, 8, 2)
    scales, bias = random_scales(8, 7), torch.randn(8, generator=torch.Generator().manual_seed(8)).to(dtype)
    result = scaled_mm(a, b, scales, scales, dtype, bias)
    assert check_scaled_mm(result, a, b, scales, scales, Accumulation.FAST, bias).ok


def test_a_missing_instruction_is_outside_the_tolerance():
    a, b = random_e4m3(16, 512, 3), random_e4m3(512, 16, 4)
    one = torch.ones(1)
    short = scaled_mm(a[:, :480], b[:480], one, one, torch.bfloat16)
    comparison = check_scaled_mm(short, a, b, one, one, Accumulation.FAST)
    assert not comparison.ok
    assert comparison.wrong > 100


def test_a_scale_of_the_wrong_row_is_outside_the_tolerance():
    a, b = random_e4m3(8, 128, 5), random_e4m3(128, 8, 6)
    scales, one = random_scales(8, 9), torch.ones(1)
    wrong = scaled_mm(a, b, scales.roll(1), one, torch.bfloat16)
    assert check_scaled_mm(wrong, a, b, scales, one, Accumulation.PROMOTED).wrong > 40


def test_nan_and_infinity_must_be_in_their_places():
    a, b = random_e4m3(4, 32, 7), random_e4m3(32, 4, 8)
    a[2, 3] = torch.nan
    scales, one = torch.tensor([1.0, torch.inf, 1.0, 1.0]), torch.ones(1)
    right = scaled_mm(a, b, scales, one, torch.bfloat16)
    assert check_scaled_mm(right, a, b, scales, one, Accumulation.FAST).ok
    for row, column, value in ((2, 1, 0.0), (0, 0, torch.nan), (0, 0, torch.inf), (1, 0, -right[1, 0].item())):
        wrong = right.clone()
        wrong[row, column] = value
        comparison = check_scaled_mm(wrong, a, b, scales, one, Accumulation.FAST)
        assert comparison.wrong == 1
        assert f"1 of 16 elements are wrong, in rows {row}..{row} and columns {column}..{column}" in comparison.report


def test_s8_allows_no_error():
    a = torch.randint(-128, 128, (4, 64), dtype=torch.int8)
    one = torch.ones(1)
    result = scaled_mm(a, a.t(), one, one, torch.bfloat16)
    assert check_scaled_mm(result, a, a.t(), one, one, Accumulation.EXACT).ok
    result[0, 0] = torch.nextafter(result[0, 0], torch.tensor(torch.inf, dtype=torch.bfloat16))
    assert check_scaled_mm(result, a, a.t(), one, one, Accumulation.EXACT).wrong == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [1.0, 1.5, 0.75, 300.0, 2.0**-20, 0.0, 2.0**-24])
def test_half_unit_in_last_place(dtype, value):
    magnitude = torch.tensor([value], dtype=torch.float64)
    info = torch.finfo(dtype)
    exponent = max(math.floor(math.log2(value)) if value else -(10**6), math.log2(info.smallest_normal))
    assert half_unit_in_last_place(magnitude, dtype).item() == info.eps * 2.0**exponent / 2


def test_tolerance_of_an_exact_sum_is_the_rounding_of_the_result():
    a, b = torch.ones(1, 1).to(torch.float8_e4m3fn), torch.ones(1, 1).to(torch.float8_e4m3fn)
    one = torch.ones(1)
    bound = tolerance(
        a, b, one, one, torch.bfloat16, Accumulation.FAST, sum_error=torch.zeros(1, 1, dtype=torch.float64)
    )
    assert exact_scaled_mm(a, b, one, one).item() == 1.0
    assert 2.0**-8 <= bound.item() < 2.0**-8 * 1.001
