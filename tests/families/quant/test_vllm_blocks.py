"""The block-scaled ops with vLLM's scales and codes, on the CPU, against the formulas of vLLM 0.33.0's kernels, in numpy.

A reciprocal is correctly rounded here. vLLM's is the GPU's approximate one: `outside_of_vllm_interval` allows for that.
"""

from typing import Any

import numpy as np
import pytest
import torch

import gemmill
from gemmill.formats.codes import unpack
from gemmill.formats.quantise import BlockScaled, quantise, unswizzle
from gemmill.formats.vllm_blocks import outside_of_vllm_interval, quantise_as_vllm
from gemmill.vocab.format import MXFP4, NVFP4

pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.filterwarnings("ignore::RuntimeWarning")]  # numpy's, of NaN
Array = np.ndarray
f32 = np.float32
TINY = np.finfo(f32).tiny
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=f32)
HIDDEN, ROWS = 256, 40


def reciprocal(x: Array) -> Array:
    x = np.where(np.abs(x) < TINY, f32(0), x)
    y = (f32(1) / x).astype(f32)
    return np.where(np.abs(y) < TINY, f32(0), y)


def e2m1(x: Array) -> Array:
    """The nearest code, on a tie the even one; NaN is the largest."""
    distance = np.abs(np.minimum(np.abs(x), f32(6))[..., None] - E2M1)
    code = np.where(distance == distance.min(axis=-1, keepdims=True), np.arange(8) % 2, 9).argmin(axis=-1)
    return np.where(np.isnan(x), 7, code + 8 * np.signbit(x)).astype(np.uint8)


def nvfp4(x: Array, global_scale: float) -> tuple[Array, Array]:
    groups, scale_of = x.reshape(-1, 16), f32(global_scale)
    amax = np.fmax.reduce(np.abs(groups), axis=-1, initial=f32(0))
    value = np.minimum(scale_of * (amax * (f32(1) / f32(6))), f32(448))
    bytes_ = torch.from_numpy(value).to(torch.float8_e4m3fn)
    scale = bytes_.float().numpy()
    factor = np.where(scale != 0, reciprocal(scale * reciprocal(scale_of)), f32(0))
    return bytes_.view(torch.uint8).numpy(), e2m1(groups * factor[:, None])


def mxfp4(x: Array, _: float = 1.0) -> tuple[Array, Array]:
    groups = x.reshape(-1, 32)
    amax = np.fmax.reduce(np.abs(groups), axis=-1, initial=f32(0))
    exponent = ((amax.view(np.uint32) + np.uint32(1 << 21)) & np.uint32(0xFF800000)) >> 23
    byte = np.where(exponent > 2, exponent - 2, 0)
    scale = (byte << 23).astype(np.uint32).view(f32)
    factor = np.where(scale != 0, f32(1) / scale, f32(0))
    return byte.astype(np.uint8), e2m1(groups * factor[:, None])


KINDS = {"nvfp4": (NVFP4, nvfp4), "mxfp4": (MXFP4, mxfp4)}


def rows_of(dtype: torch.dtype, columns: int = HIDDEN) -> torch.Tensor:
    """Normal values of many magnitudes, zeros, NaN and infinity; no group is NaN alone."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(ROWS, columns, generator=generator) * 2.0 ** torch.randint(-12, 12, (ROWS, 1), generator=generator)
    x[1], x[2] = 0.0, -0.0
    x[3, ::3], x[4, 5], x[5, 7] = float("nan"), float("inf"), -float("inf")
    x[6] = x[6] * 1e-38
    x[7] = x[7] * 1e-41
    return x.to(dtype)


def check(scales: torch.Tensor, codes: torch.Tensor, wanted: tuple[Array, Array]) -> None:
    assert np.array_equal(scales.view(torch.uint8).numpy().reshape(-1), wanted[0])
    assert np.array_equal(unpack(codes, 4).numpy().reshape(wanted[1].shape), wanted[1])


@pytest.mark.parametrize("global_scale", [1.0, 0.37, 1e-3, 448.0, 3e8, 2.0**-100])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_nvfp4(dtype: torch.dtype, global_scale: float) -> None:
    x, factor = rows_of(dtype), torch.tensor([global_scale])
    codes, scales = (
        torch.empty(ROWS, HIDDEN // 2, dtype=torch.uint8),
        torch.empty(ROWS, HIDDEN // 16, dtype=torch.uint8),
    )
    torch.ops.gemmill.vllm_scaled_nvfp4_quant(codes, scales, x, factor, False)
    check(scales, codes, nvfp4(x.float().numpy(), global_scale))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_silu_and_nvfp4(dtype: torch.dtype) -> None:
    """The product alone is rounded to the input's type."""
    x, factor = (
        torch.randn(ROWS, 2 * HIDDEN, generator=torch.Generator().manual_seed(1)).to(dtype),
        torch.tensor([300.0]),
    )
    codes, scales = (
        torch.empty(ROWS, HIDDEN // 2, dtype=torch.uint8),
        torch.empty(ROWS, HIDDEN // 16, dtype=torch.uint8),
    )
    torch.ops.gemmill.vllm_silu_and_mul_nvfp4_quant(codes, scales, x, factor, False)
    gate, up = x.float().chunk(2, dim=-1)
    product = (gate / (1 + torch.exp(-gate)) * up).to(dtype).float()
    check(scales, codes, nvfp4(product.numpy(), 300.0))


@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_experts(kind: str, silu: bool) -> None:
    format, formula = KINDS[kind]
    x = rows_of(torch.bfloat16, HIDDEN * (2 if silu else 1))
    offsets, starts = torch.tensor([0, 0, 30, 38], dtype=torch.int32), torch.tensor([0, 0, 128, 256], dtype=torch.int32)
    codes, words = torch.empty(ROWS, HIDDEN // 2, dtype=torch.uint8), HIDDEN // format.group
    scales, factors = torch.empty(256, words, dtype=torch.uint8), torch.tensor([9.0, 300.0, 2.5])
    name = {"nvfp4": "scaled_fp4_experts_quant", "mxfp4": "mxfp4_experts_quant"}[kind]
    scaled, count = ((factors,), ()) if kind == "nvfp4" else ((), (3,))
    op = getattr(torch.ops.gemmill, f"vllm_{'silu_and_mul_' if silu else ''}{name}")
    op(codes, scales, x, *scaled, offsets, starts, *count)
    gate, up = (x.float(), None) if not silu else x.float().chunk(2, dim=-1)
    values = gate if up is None else (gate / (1 + torch.exp(-gate)) * up).bfloat16().float()
    for expert, (start, end) in ((1, (0, 30)), (2, (30, 38))):
        plain = unswizzle(scales[(expert - 1) * 128 : expert * 128], end - start, words)
        check(plain, codes[start:end], formula(values[start:end].numpy(), float(factors[expert])))
    assert not codes[38:].any()


@pytest.mark.parametrize(
    ("largest", "byte", "ours"), [(x / 4, 128 if x >= 28 else 127, 128 if x > 24 else 127) for x in range(16, 32)]
)
def test_a_power_of_two_is_the_next_from_seven_quarters_on(largest: float, byte: int, ours: int) -> None:
    """vLLM's threshold is 1.75 times a power of two, where no code saturates it is 1.5."""
    x = torch.full((1, 32), largest / 2).bfloat16()
    x[0, 9] = -largest
    given = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0, 128], dtype=torch.int32)
    scales, codes = torch.zeros(128, 4, dtype=torch.uint8), torch.zeros(1, 16, dtype=torch.uint8)
    torch.ops.gemmill.vllm_mxfp4_experts_quant(codes, scales, x, *given, 1)
    assert int(scales[0, 0]) == byte
    assert int(gemmill.mxfp4_experts_quant(x, given[0])[1][0, 0]) == ours


def test_a_group_of_nan_alone_has_a_scale_of_zero() -> None:
    """Where vLLM's of nvfp4 is NaN. Codes are the same."""
    x = torch.full((1, 32), float("nan"))
    for format, scale in ((NVFP4, torch.ones(1)), (MXFP4, None)):
        found = quantise_as_vllm(x, format, global_scale=scale)
        assert not found.scales.any() and (found.codes == 0x77).all()


def moved(x: torch.Tensor, ulps: int) -> torch.Tensor:
    """Positive values, so many units in the last place away."""
    return (x.view(torch.int32) + ulps).view(torch.float32)


@pytest.mark.parametrize("ulps", [-1, 1])
def test_a_reciprocal_a_unit_away_is_within_bounds_and_our_own_codes_are_not(ulps: int, monkeypatch: Any) -> None:
    x = torch.randn(4096, 64, generator=torch.Generator().manual_seed(3)).bfloat16().float()
    scale = torch.tensor([2688 / float(x.abs().max())])
    exact = quantise_as_vllm(x, NVFP4, global_scale=scale)
    near = torch.reciprocal
    monkeypatch.setattr(torch, "reciprocal", lambda y: moved(near(y), ulps))
    found = quantise_as_vllm(x, NVFP4, global_scale=scale)
    monkeypatch.undo()
    assert not torch.equal(found.codes, exact.codes)
    assert outside_of_vllm_interval(x, x, found, global_scale=scale) == (0, 0)
    wrong = BlockScaled(format=NVFP4, codes=found.codes ^ 1, scales=found.scales)
    assert outside_of_vllm_interval(x, x, wrong, global_scale=scale)[0] > x.numel() // 4
    wrong = BlockScaled(format=NVFP4, codes=found.codes, scales=found.scales - 1)
    assert outside_of_vllm_interval(x, x, wrong, global_scale=scale)[1] == found.scales.numel()
    mx = quantise(x, MXFP4)
    assert outside_of_vllm_interval(x, x, mx)[1] > 0
