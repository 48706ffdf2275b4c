"""The block-scaled GEMM, ops fused before quantisation, and the bounds of kernels that differ from both."""

import math

import pytest
import torch

from gemmill.families.blockscaled.bounds import (
    rounded_fold_error,
    widened_tolerance,
)
from gemmill.families.blockscaled.reference import block_scaled_mm, exact_mm, gelu, modulate, silu_and_mul, weight_mm
from gemmill.families.quant import reference as house
from gemmill.families.quant.config import Activation
from gemmill.formats.codes import pack, unpack
from gemmill.formats.intervals import fused_interval, outside_of_interval
from gemmill.formats.quantise import BlockScaled, global_scale_of, quantise
from gemmill.vocab.format import BLOCK_SCALED, MXFP4, MXFP6, MXFP8, NVFP4, Format

ONE = {"ue4m3": 0x38, "ue8m0": 127}


def small_integers(format: Format, rows: int, k: int) -> tuple[BlockScaled, torch.Tensor]:
    """A matrix of integers up to 24, exact in the format with scales 1, 2 and 4, and its values."""
    codes = {value: code for code, value in enumerate(format.code.values) if value in (-3.0, -2.0, -1.0, 1.0, 2.0, 3.0)}
    chosen = torch.randint(len(codes), (rows, k))
    powers = torch.randint(3, (rows, k // format.group))
    step = 8 if format.scale.name == "ue4m3" else 1
    matrix = BlockScaled(
        format=format,
        codes=pack(torch.tensor(list(codes.values()), dtype=torch.uint8)[chosen], format.code.bits),
        scales=(ONE[format.scale.name] + step * powers).to(torch.uint8),
    )
    return matrix, torch.tensor(list(codes)).double()[chosen] * (1 << powers).repeat_interleave(format.group, 1)


PAIRS = [(NVFP4, NVFP4), (MXFP4, MXFP4), (MXFP8, MXFP8), (MXFP8, MXFP6), (MXFP8, MXFP4)]


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("a_format", "b_format"), PAIRS, ids=str)
def test_integers_are_summed_one_by_one(a_format: Format, b_format: Format, out_dtype: torch.dtype) -> None:
    (a, a_values), (b, b_values) = small_integers(a_format, 5, 96), small_integers(b_format, 7, 96)
    alpha, bias = torch.tensor([0.25]), torch.arange(7).float()
    found = block_scaled_mm(a, b, out_dtype, alpha, bias)
    for m in range(5):
        for n in range(7):
            total = sum(int(x) * int(y) for x, y in zip(a_values[m].tolist(), b_values[n].tolist(), strict=True))
            wanted = torch.tensor(0.25 * total + n).to(out_dtype)
            assert found[m, n] == wanted
    assert found.dtype is out_dtype


def test_activations_that_are_not_quantised() -> None:
    b, values = small_integers(MXFP4, 3, 64)
    a = torch.randint(-8, 8, (4, 64)).bfloat16()
    assert torch.equal(weight_mm(a, b), (a.double() @ values.t()).bfloat16())
    assert weight_mm(a.half(), b).dtype is torch.float16


def test_alpha_undoes_both_global_scales() -> None:
    x, w = torch.randn(8, 64), torch.randn(16, 64)
    factors = global_scale_of(x), global_scale_of(w)
    a, b = (quantise(values, NVFP4, global_scale=factor) for values, factor in ((x, factors[0]), (w, factors[1])))
    alpha = 1 / (factors[0] * factors[1])
    wanted = x.double() @ w.double().t()
    error = (exact_mm(a.values(), b.values(), alpha) - wanted).norm() / wanted.norm()
    assert 0.08 < error < 0.2, "two operands of relative error 0.094 each"


def test_a_gemm_of_two_ks() -> None:
    with pytest.raises(ValueError) as caught:
        block_scaled_mm(small_integers(MXFP4, 1, 32)[0], small_integers(MXFP4, 1, 64)[0], torch.bfloat16)
    assert str(caught.value) == "a has K = 32 and b has K = 64: a GEMM sums over one K"


def test_silu_is_the_houses() -> None:
    x = torch.randn(64, 256).bfloat16() * 4
    assert torch.equal(silu_and_mul(x), house.activated(x, Activation.SILU))


@pytest.mark.parametrize("tanh", [False, True])
def test_gelu(tanh: bool) -> None:
    x = torch.linspace(-8, 8, 4001)
    exact = torch.nn.functional.gelu(x.double(), approximate="tanh" if tanh else "none")
    assert ((gelu(x, tanh=tanh).double() - exact).abs() <= 4 * 2.0**-24 * x.abs()).all()
    gated = torch.cat([x, torch.ones_like(x)]).reshape(1, -1)
    activation = Activation.GELU_TANH if tanh else Activation.GELU_ERF
    assert torch.equal(gelu(x, tanh=tanh), house.activated(gated, activation)[0])


def test_modulation_rounds_each_step_to_f32() -> None:
    x = torch.randn(4, 96).bfloat16()
    for scale, shift in ((torch.randn(96), torch.randn(96)), (torch.randn(4, 96), torch.randn(4, 96))):
        one_plus = (1 + scale.double()).float().double()
        wanted = ((x.double() * one_plus).float().double() + shift.double()).float()
        assert torch.equal(modulate(x, scale, shift), wanted)
    assert modulate(torch.tensor([[3.0]]), torch.tensor([1.0]), torch.tensor([-1.0])) == 5.0


@pytest.mark.parametrize("format", BLOCK_SCALED, ids=str)
def test_fused_values_within_their_interval(format: Format) -> None:
    x = torch.randn(16, 4 * 128).bfloat16()
    value = silu_and_mul(x)
    factor = global_scale_of(value) if format.has_global_scale else None
    low, high = fused_interval(value, value)
    signs = torch.randint(-1, 2, value.shape)
    moved = value * (1 + signs * 2.0**-23)
    assert ((low <= moved) & (moved <= high)).all()
    found = quantise(moved, format, global_scale=factor)
    assert outside_of_interval(low, high, found, global_scale=factor) == (0, 0)


@pytest.mark.parametrize("format", [NVFP4, MXFP6], ids=str)
def test_wrong_codes_and_scales_are_outside(format: Format) -> None:
    value = gelu(torch.randn(8, 128), tanh=True)
    factor = global_scale_of(value) if format.has_global_scale else None
    low, high = fused_interval(value, torch.full_like(value, 1.0))
    right = quantise(value, format, global_scale=factor)
    codes = unpack(right.codes, format.code.bits)
    codes[3, 5] ^= 1
    wrong = BlockScaled(format=format, codes=pack(codes, format.code.bits), scales=right.scales)
    assert outside_of_interval(low, high, wrong, global_scale=factor)[0] == 1
    scales = right.scales.clone()
    scales[2, 1] += 1
    wrong = BlockScaled(format=format, codes=right.codes, scales=scales)
    assert outside_of_interval(low, high, wrong, global_scale=factor)[1] == 1


def test_a_wide_interval_holds_codes_of_both_signs() -> None:
    value = torch.randn(8, 128)
    low, high = fused_interval(value, torch.full_like(value, 2.0**18))
    assert (high - low > 0.1).all()
    found = quantise(value, MXFP6)
    assert outside_of_interval(low, high, found) == (0, 0)
    assert outside_of_interval(low + 2, high + 2, found)[0] > 0 and outside_of_interval(low - 2, high - 2, found)[0] > 0


def tensor_core(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A worst case of the instruction: each of 17 terms cut off 23 bits below the largest one's exponent, and the sum too."""
    total = torch.zeros(a.shape[0], b.shape[0], dtype=torch.float64)
    for start in range(0, a.shape[1], 16):
        terms = a[:, None, start : start + 16] * b[None, :, start : start + 16]
        terms = torch.cat([terms, total[..., None]], dim=-1)
        largest = terms.abs().amax(dim=-1, keepdim=True)
        step = torch.exp2(torch.frexp(largest).exponent.double() - 1 - 23)
        total = (torch.trunc(terms / step) * step).sum(dim=-1)
        step = torch.exp2(torch.frexp(total).exponent.double() - 1 - 23)
        total = torch.trunc(total / step) * step
    return total


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("slice_k", [None, 256])
def test_a_tensor_core_is_within_its_tolerance_and_no_further(out_dtype: torch.dtype, slice_k: int | None) -> None:
    x, w = torch.randn(6, 1024).abs(), torch.randn(8, 1024)
    a, b = quantise(x, MXFP8).values(), quantise(w, MXFP4).values()
    alpha, bias = torch.tensor([0.5]), torch.randn(8)
    slices = zip(a.split(slice_k or 1024, dim=1), b.split(slice_k or 1024, dim=1), strict=True)
    total = torch.zeros(6, 8)
    for a_slice, b_slice in slices:
        total += tensor_core(a_slice, b_slice).float()
    found = (alpha * total + bias).to(out_dtype)
    exact = exact_mm(a, b, alpha, bias)
    bound = widened_tolerance(a, b, out_dtype, alpha, bias, slice_k=slice_k)
    assert ((found.double() - exact).abs() <= bound).all()
    one_product_missing = exact - 0.5 * a[:, 3:4] * b[:, 3].unsqueeze(0)
    noticed = (one_product_missing - exact).abs() > bound
    if out_dtype is torch.float32:
        assert noticed.double().mean() > 0.5
        assert (bound < 1e-3 * exact.abs().mean()).all()


def test_the_tolerance_is_little_more_than_the_worst_that_happens() -> None:
    """After a first 1, every product is a hair below a unit of it, so that all of each instruction is cut off."""
    a, b = torch.ones(1, 1040).double(), torch.full((1, 1040), (1 - 2.0**-6) * 2.0**-23, dtype=torch.float64)
    b[0, 0], b[0, 1:16] = 1.0, 0.0
    error = float(exact_mm(a, b) - tensor_core(a, b))
    assert error == 64 * 16 * (1 - 2.0**-6) * 2.0**-23
    assert 0.8 < error / float(widened_tolerance(a, b, torch.float32)) <= 1


def test_tolerance_of_an_empty_sum_is_the_bias_stored() -> None:
    bias = torch.tensor([1.0, 3.0])
    bound = widened_tolerance(torch.zeros(2, 0).double(), torch.zeros(2, 0).double(), torch.bfloat16, bias=bias)
    assert torch.allclose(bound, torch.tensor([2.0**-8, 2.0**-7], dtype=torch.float64), rtol=1e-3, atol=0)


def test_rounded_folding_moves_no_weight_further_than_its_bound() -> None:
    """Every product of code and scale, on bases for which none is above 448."""
    products = torch.tensor([c * s for c in NVFP4.code.values for s in NVFP4.scale.values[:127]], dtype=torch.float64)
    for exponent in (3, 4, 9):
        base = torch.tensor(2.0**exponent, dtype=torch.float64)
        folded = (products / base).float().to(torch.float8_e4m3fn).double() * base
        error, bound = (folded - products).abs(), rounded_fold_error(products, base)
        assert (error <= bound).all()
        assert math.isclose(float((error / bound).max()), 1.0, rel_tol=0.2)
