"""The reference against arithmetic written another way: Python integers and fractions."""

from fractions import Fraction

import pytest
import torch

from gemmill.arithmetic import fused_multiply_add
from gemmill.families.scaled_mm.reference import scaled_mm


def random_s8(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.randint(-128, 128, (rows, columns), dtype=torch.int8, generator=torch.Generator().manual_seed(seed))


def test_s8_without_scales_is_the_integer_product():
    a, b = random_s8(5, 33, 1), random_s8(7, 33, 2).t()
    one = torch.ones(1)
    expected = [[sum(int(a[i, k]) * int(b[k, j]) for k in range(33)) for j in range(7)] for i in range(5)]
    assert scaled_mm(a, b, one, one, torch.float32).tolist() == expected


def test_scales_are_applied_in_float32_b_first():
    a, b = random_s8(4, 64, 3), random_s8(6, 64, 4).t()
    generator = torch.Generator().manual_seed(5)
    a_scales, b_scales = torch.rand(4, 1, generator=generator) + 0.1, torch.rand(1, 6, generator=generator) + 0.1
    total = (a.to(torch.float64) @ b.to(torch.float64)).to(torch.float32)
    expected = (a_scales * (b_scales * total)).to(torch.bfloat16)
    assert torch.equal(scaled_mm(a, b, a_scales, b_scales, torch.bfloat16), expected)
    assert not torch.equal((a_scales * b_scales) * total, a_scales * (b_scales * total)), "the order shows in this data"


def test_zero_point_per_tensor_and_per_token():
    a, b = random_s8(3, 16, 5), random_s8(4, 16, 6).t()
    one = torch.ones(1)
    azp = torch.tensor([3, -5, 7], dtype=torch.int32)
    sums = b.to(torch.int32).sum(dim=0, dtype=torch.int32)
    shifted = (a.to(torch.int32) - azp[:, None]).to(torch.float64) @ b.to(torch.float64)
    per_token = scaled_mm(a, b, one, one, torch.float32, azp_adj=sums, azp=azp)
    assert torch.equal(per_token, shifted.to(torch.float32))
    per_tensor = scaled_mm(a, b, one, one, torch.float32, azp_adj=3 * sums)
    assert torch.equal(per_tensor[0], shifted[0].to(torch.float32))


def test_zero_point_wraps_in_32_bits():
    a, b = torch.ones(1, 1, dtype=torch.int8), torch.ones(1, 1, dtype=torch.int8)
    one = torch.ones(1)
    result = scaled_mm(a, b, one, one, torch.float32, azp_adj=torch.tensor([-(2**31)], dtype=torch.int32))
    assert result.item() == -(2.0**31), "1 + 2^31 does not fit and wraps"


def test_e4m3_sum_is_exact():
    """448 x 448 plus 2^-9 x 2^-9: float32 would lose the small product."""
    a = torch.tensor([[448.0, 2.0**-9, -448.0]]).to(torch.float8_e4m3fn)
    b = torch.tensor([[448.0], [2.0**-9], [448.0]]).to(torch.float8_e4m3fn)
    one = torch.ones(1)
    assert scaled_mm(a, b, one, one, torch.float32).item() == 2.0**-18


@pytest.mark.parametrize("shape", [(0, 4, 8), (4, 0, 8), (4, 8, 0)])
def test_zero_sizes(shape):
    m, n, k = shape
    a, b = torch.zeros(m, k).to(torch.float8_e4m3fn), torch.zeros(k, n).to(torch.float8_e4m3fn)
    bias = torch.arange(n, dtype=torch.bfloat16)
    result = scaled_mm(a, b, torch.ones(1), torch.ones(1), torch.bfloat16, bias)
    assert torch.equal(result, bias.expand(m, n))


def test_nan_fills_its_row_and_infinite_scale_its_column():
    a, b = torch.ones(3, 4).to(torch.float8_e4m3fn), torch.ones(4, 2).to(torch.float8_e4m3fn)
    a[1, 2] = torch.nan
    result = scaled_mm(a, b, torch.ones(3), torch.tensor([1.0, torch.inf]), torch.bfloat16)
    assert result[1].isnan().all()
    assert result[0].tolist() == [4.0, torch.inf]


def test_wrong_number_of_scales():
    a, b = torch.ones(3, 4, dtype=torch.int8), torch.ones(4, 2, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"a_scales has 2 values: the reference takes 1 or M = 3"):
        scaled_mm(a, b, torch.ones(2), torch.ones(1), torch.bfloat16)
    with pytest.raises(ValueError, match=r"b_scales has 3 values: the reference takes 1 or N = 2"):
        scaled_mm(a, b, torch.ones(1), torch.ones(3), torch.bfloat16)


def nearest_float32(value: Fraction) -> float:
    """Round to nearest even, by comparing with the neighbours of a first guess."""
    guess = torch.tensor(float(value), dtype=torch.float32)
    candidates = [torch.nextafter(guess, torch.tensor(side)) for side in (-torch.inf, torch.inf)] + [guess]
    mantissa_is_even = lambda x: x.view(torch.int32).item() % 2 == 0  # noqa: E731
    return min(candidates, key=lambda x: (abs(Fraction(x.item()) - value), not mantissa_is_even(x))).item()


def test_fused_multiply_add_rounds_once():
    generator = torch.Generator().manual_seed(7)
    x, y, z = (torch.randn(2000, generator=generator) for _ in range(3))
    z = z * torch.exp2(torch.randint(-60, 3, (2000,), generator=generator).float())
    result = fused_multiply_add(x, y, z)
    for got, *xyz in zip(result.tolist(), x.tolist(), y.tolist(), z.tolist(), strict=True):
        exact = Fraction(xyz[0]) * Fraction(xyz[1]) + Fraction(xyz[2])
        assert got == nearest_float32(exact)


def test_fused_multiply_add_at_a_tie_that_double_rounding_misses():
    """1 + 2^-24 is a tie in float32; 2^-70 more tips it, and is lost in a float64 sum."""
    x, y, z = torch.tensor([1.0 + 2.0**-12]), torch.tensor([1.0 + 2.0**-12]), torch.tensor([2.0**-80])
    product = Fraction(x.item()) * Fraction(y.item())
    assert fused_multiply_add(x, y, z).item() == nearest_float32(product + Fraction(2) ** -80)
    assert (x.double() * y.double() + z.double()).float().item() != fused_multiply_add(x, y, z).item()


def test_fused_multiply_add_keeps_nan_and_infinity():
    x = torch.tensor([torch.inf, torch.nan, 0.0, torch.inf, 3e38])
    y = torch.tensor([1.0, 1.0, torch.inf, 0.0, 10.0])
    result = fused_multiply_add(x, y, torch.zeros(5))
    assert result[0] == torch.inf and result[1:4].isnan().all() and result[4] == torch.inf


def test_product_of_zero_points_may_overflow_where_the_difference_fits():
    a, b = torch.tensor([[16]], dtype=torch.int8), torch.tensor([[32]], dtype=torch.int8)
    one, azp, adj = torch.ones(1), torch.tensor([2**15], dtype=torch.int32), torch.tensor([2**16], dtype=torch.int32)
    assert scaled_mm(a, b, one, one, torch.float32, azp_adj=adj, azp=azp).item() == 512 - 2**31
