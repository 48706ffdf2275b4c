"""Exact operands: no order of summation loses a bit of them in the tensor core, and little that is missing is hidden."""

import pytest
import torch

from gemmill.families.scaled_mm.bounds import TENSOR_CORES
from gemmill.families.scaled_mm.reference import scaled_mm
from gemmill.numerics.exact import EXACT_BELOW, powers_of_two, small_integers


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("k", [1, 16, 4095, 4096, 14336, 32768, 53248, 200_000])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.int8])
def test_no_order_of_summation_leaves_what_the_tensor_core_adds_exactly(k: int, dtype: torch.dtype) -> None:
    """Whole numbers, the magnitudes of whose products sum to less than 2^14: so does every part of the sum."""
    a, b = small_integers(32, k, dtype, generator(k)), small_integers(32, k, dtype, generator(k + 1))
    for matrix in (a, b):
        assert torch.equal(matrix.double(), matrix.double().round())
    most = (a.double().abs() @ b.double().abs().t()).max()
    assert most < EXACT_BELOW
    assert k < 14336 or most > EXACT_BELOW / 4, "large enough to be worth adding"
    units = {core.unit for kind, core in TENSOR_CORES.items() if kind == dtype}
    assert all(EXACT_BELOW / 2 * unit <= 1 for unit in units), "ones are kept beside the largest exponent there is"


def test_results_are_rounded_once() -> None:
    """Sums, scales and bias in float32, in whatever order, equal those in float64."""
    a, b = (small_integers(16, 32768, torch.float8_e4m3fn, generator(seed)) for seed in (1, 2))
    a_scales, b_scales = powers_of_two((16, 1), generator(3)), powers_of_two((1, 16), generator(4))
    assert set(a_scales.flatten().tolist()) == {0.25, 0.5, 1.0}
    bias = torch.randint(-32, 33, (16,), generator=generator(5)).to(torch.bfloat16)
    total = a.double() @ b.double().t()
    exact = a_scales * b_scales * total + bias
    singles = (total.float() * a_scales) * b_scales + bias.float()
    assert torch.equal(singles.double(), exact)
    assert torch.equal(scaled_mm(a, b.t(), a_scales, b_scales, torch.bfloat16, bias), exact.to(torch.bfloat16))
