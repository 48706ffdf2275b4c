"""The sum of a row's squares, whose order does not show."""

import math
import random
from fractions import Fraction

import torch

from gemmill.families.quant.reference import sum_in_any_order


def test_sums_have_the_same_bits_in_any_order_and_nearly_those_of_fractions() -> None:
    rng = random.Random(1)
    rows = [[math.ldexp(rng.randrange(1 << 24), rng.randrange(-149, 80)) for _ in range(97)] for _ in range(20)]
    values = torch.tensor(rows, dtype=torch.float32)
    wanted = sum_in_any_order(values)
    for seed in range(10):
        order = torch.randperm(97, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(sum_in_any_order(values[:, order]), wanted)
    for row, found in zip(values.tolist(), wanted.flatten().tolist(), strict=True):
        exact = sum(map(Fraction, row))
        assert abs(Fraction(found) - exact) <= exact * Fraction(6, 1 << 53)


def test_subnormals_zeros_and_no_values_are_summed() -> None:
    least = 2.0**-149
    assert sum_in_any_order(torch.tensor([[least, 0.0, least], [0.0, 0.0, 0.0]])).tolist() == [[2 * least], [0.0]]
    assert sum_in_any_order(torch.empty((2, 0))).tolist() == [[0.0], [0.0]]


def test_what_is_not_finite_stays_so() -> None:
    found = sum_in_any_order(torch.tensor([[1.0, math.inf], [math.nan, 1.0], [math.inf, math.nan]])).flatten().tolist()
    assert found[0] == math.inf and all(map(math.isnan, found[1:]))
