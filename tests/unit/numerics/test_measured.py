"""Which rows of a measured result are looked at."""

import pytest
import torch

from gemmill.numerics.measured import EDGE_ROWS, LARGE_STRIPE, MANY_ROWS, STRIPE, sampled_rows


@pytest.mark.parametrize("rows", [1, 128, 129, 1000, MANY_ROWS, MANY_ROWS + 1, 10_007])
def test_edges_and_a_row_of_every_stripe_are_looked_at(rows: int) -> None:
    found = sampled_rows(rows, torch.device("cpu")).tolist()
    assert found == sorted(set(found)) and set(found) <= set(range(rows))
    assert {*range(min(rows, EDGE_ROWS)), *range(max(rows - EDGE_ROWS, 0), rows)} <= set(found)
    stripe = STRIPE if rows <= MANY_ROWS else LARGE_STRIPE
    assert {row // stripe for row in found} == set(range(-(-rows // stripe)))
    assert rows <= 2 * LARGE_STRIPE or len(found) < 2 * EDGE_ROWS + rows / stripe + 1
