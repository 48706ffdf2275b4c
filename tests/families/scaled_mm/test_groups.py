"""Scales in groups: the reference against loops, its tolerance against a simulated kernel and against faults."""

import pytest
import torch

from comparisons import check_scaled_mm
from gemmill.families.scaled_mm.bounds import exact_scaled_mm, tolerance
from gemmill.families.scaled_mm.reference import groups_of, scaled_mm
from gemmill.vocab import SCALE_GROUPS, Accumulation, ScaleGranularity, ScaleGroups

BLOCKS_128 = SCALE_GROUPS[0]
M, N, K = 7, 150, 300


def operands(
    groups: ScaleGroups, dtype: torch.dtype = torch.float8_e4m3fn, m: int = M, n: int = N, k: int = K
) -> tuple:
    generator = torch.Generator().manual_seed(groups.size + n)
    if dtype is torch.int8:
        a, b = (torch.randint(-128, 128, shape, generator=generator, dtype=dtype) for shape in ((m, k), (n, k)))
    else:
        a, b = (torch.randn(shape, generator=generator).to(dtype) for shape in ((m, k), (n, k)))
    a_scales, b_scales = (
        torch.rand(shape, generator=generator) + 0.5 for shape in (groups.a_shape(m, k), groups.b_shape(n, k))
    )
    return a, b.t(), a_scales, b_scales


def simulated(a, b, a_scales, b_scales, groups: ScaleGroups, slices: int = 1) -> torch.Tensor:
    """A kernel: sums of groups cut off as in the tensor core, then everything in float32, slices of K added at the end."""
    n, count = b.shape[1], a_scales.shape[1]
    partial = [torch.zeros(a.shape[0], n) for _ in range(slices)]
    for g in range(count):
        part = slice(g * groups.size, (g + 1) * groups.size)
        running = torch.zeros(a.shape[0], n, dtype=torch.float64)
        for start in range(*part.indices(a.shape[1])[:2], 32):
            stop = min(start + 32, part.stop)
            products = a[:, start:stop].double()[:, :, None] * b[start:stop].double()[None]
            terms = torch.cat([running[:, None, :], products], dim=1)
            unit = torch.exp2(torch.frexp(terms.abs().amax(dim=1, keepdim=True))[1].double() - 1 - 13)
            running = (torch.floor(terms / unit) * unit).sum(dim=1) if a.dtype.is_floating_point else terms.sum(dim=1)
        of_b = b_scales[g]
        if groups.b_scale is ScaleGranularity.BLOCK:
            of_b = of_b.repeat_interleave(groups.size)[:n]
        partial[g * slices // count] += a_scales[:, g, None] * of_b * running.float()
    return sum(partial[1:], partial[0])


@pytest.mark.parametrize("groups", SCALE_GROUPS)
def test_reference_is_the_definition(groups: ScaleGroups) -> None:
    a, b, a_scales, b_scales = operands(groups)
    assert groups_of(a, b, a_scales, b_scales) == groups
    found = exact_scaled_mm(a, b, a_scales, b_scales)
    for m, n in ((0, 0), (3, 64), (M - 1, N - 1)):
        column = n // groups.size if groups.b_scale is ScaleGranularity.BLOCK else n
        expected = sum(
            float(a_scales[m, k // groups.size] * b_scales[k // groups.size, column]) * float(a[m, k]) * float(b[k, n])
            for k in range(K)
        )
        assert found[m, n].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize("groups", SCALE_GROUPS)
def test_a_simulated_kernel_is_within_the_tolerance(groups: ScaleGroups, dtype: torch.dtype, slices: int) -> None:
    call = operands(groups, dtype)
    found = simulated(*call, groups, slices)
    error = (found.double() - exact_scaled_mm(*call)).abs()
    bound = tolerance(*call, torch.float16, Accumulation.PROMOTED)
    assert (error <= bound).all() and (error > 0).any()
    accumulation = Accumulation.EXACT if dtype is torch.int8 else Accumulation.PROMOTED
    assert check_scaled_mm(found.bfloat16(), *call, accumulation).ok


FAULTS = {
    "a group left out": lambda a, b, a_scales, b_scales: (a, b, a_scales * torch.tensor([1.0, 0.0, 1.0]), b_scales),
    "a's scales of the next group": lambda a, b, a_scales, b_scales: (a, b, a_scales.roll(1, 1), b_scales),
    "a's scales of the next row": lambda a, b, a_scales, b_scales: (a, b, a_scales.roll(1, 0), b_scales),
    "b's scales of the next block": lambda a, b, a_scales, b_scales: (a, b, a_scales, b_scales.roll(1, 1)),
    "an instruction left out": lambda a, b, a_scales, b_scales: (
        torch.cat([a[:, :32].float() * 0, a[:, 32:].float()], 1).to(a.dtype),
        b,
        a_scales,
        b_scales,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_outside_the_tolerance(fault: str) -> None:
    call = operands(BLOCKS_128)
    wrong = scaled_mm(*FAULTS[fault](*call), torch.bfloat16)
    assert check_scaled_mm(wrong, *call, Accumulation.PROMOTED).wrong > M * N / 2


def test_product_of_scales_overflows_as_in_float32() -> None:
    a, b, a_scales, b_scales = operands(BLOCKS_128)
    result = scaled_mm(a, b, a_scales * 1e30, b_scales * 1e30, torch.bfloat16)
    assert not result.isfinite().any()
