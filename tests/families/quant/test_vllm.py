"""The ops with vLLM's scales and codes, on the CPU, against the formulas of vLLM 0.33.0's kernels for sm_90, in numpy."""

import math
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from gemmill.families.quant.ops import QUANT_OPS
from gemmill.families.quant.reference import VllmSum, rms_normed
from gemmill.family import VLLM_PREFIX
from gemmill.runtime.schemas import BY_NAME
from gemmill.vocab import Arch

pytestmark = [
    pytest.mark.usefixtures("home"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numpy's, of NaN and of overflows
]
Array = np.ndarray
f32 = np.float32
NAN, INF = float("nan"), float("inf")
FLT_MAX = np.finfo(f32).max
LEAST_FP8_SCALE = f32(1) / (f32(448) * f32(512))
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
HIDDEN = 256


def e4m3(x: Array) -> Array:
    """Of values within +-448."""
    return torch.from_numpy(np.ascontiguousarray(x)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()


def fp8(x: Array) -> Array:
    return e4m3(np.fmax(f32(-448), np.fmin(x, f32(448))))


def group_fp8(x: Array) -> Array:
    return e4m3(np.fmin(np.fmax(x, f32(-448)), f32(448)))


def group_int8(x: Array) -> Array:
    return np.trunc(np.fmin(np.fmax(x, f32(-128)), f32(127))).astype(np.int8).view(np.uint8)


def int8_rn(x: Array) -> Array:
    return np.where(np.isnan(x), 0, np.clip(np.rint(x), -128, 127)).astype(np.int8).view(np.uint8)


def int32_rn(x: Array) -> Array:
    rounded = np.clip(np.rint(x.astype(np.float64)), -(2.0**31), 2.0**31 - 1)
    return np.where(np.isnan(x), 0, rounded).astype(np.int64)


def with_azp(x: Array, azp: Array) -> Array:
    """The sum in a register of 32 bits."""
    wrapped = (int32_rn(x) + azp + 2**31) % 2**32 - 2**31
    return np.clip(wrapped, -128, 127).astype(np.int8).view(np.uint8)


def largest(x: Array, start: float = 0.0) -> Array:
    """fmaxf over a row, from a number on."""
    return np.fmax.reduce(np.abs(x), axis=-1, keepdims=True, initial=f32(start))


def static_fp8(x: Array, scale: Array) -> Array:
    return fp8(x * (f32(1) / scale))


def dynamic_fp8(x: Array) -> tuple[Array, Array]:
    scale = largest(x).max() / f32(448)
    return fp8(x * (f32(1) / scale)), scale


def token_fp8(x: Array, bound: Array | None) -> tuple[Array, Array]:
    amax = largest(x) if bound is None else np.fmin(largest(x), bound)
    scale = np.fmax(amax / f32(448), LEAST_FP8_SCALE)
    return fp8(x / scale), scale


def token_int8(x: Array) -> tuple[Array, Array]:
    amax = largest(x)
    reciprocal = np.where(amax == 0, f32(0), f32(127) / amax)
    return int8_rn(x * reciprocal), amax / f32(127)


def token_int8_azp(x: Array) -> tuple[Array, Array, Array]:
    low = np.fmin.reduce(x, axis=-1, keepdims=True, initial=FLT_MAX)
    high = np.fmax.reduce(x, axis=-1, keepdims=True, initial=-FLT_MAX)
    scale = (high - low) / f32(255)
    azp = int32_rn(f32(-128) - low / scale)
    return with_azp(x * (f32(1) / scale), azp), scale, azp


def group_scale(x: Array, eps: float, most: float, power_of_two: str) -> Array:
    scale = largest(x, f32(eps)) / f32(most)
    if not power_of_two:
        return scale
    scale = np.fmax(np.abs(scale), f32(1e-10))
    if power_of_two == "logarithm":
        return np.exp2(np.ceil(np.log2(scale.astype(np.float64)).astype(f32)))
    bits = scale.view(np.uint32)
    return ((bits >> 23) + ((bits & 0x7FFFFF) != 0) << 23).astype(np.uint32).view(f32)


def silu_block_fp8(x: Array, sigmoid: Array, bound: Array | None) -> tuple[Array, Array]:
    gate, up = np.split(x, 2, axis=-1)
    product = (gate * sigmoid) * up
    groups = product.reshape(len(x), -1, 128)
    amax = np.fmax.reduce(np.abs(groups), axis=-1, keepdims=True)  # NaN where all are
    scale = amax / f32(448)
    scale = np.fmax(scale if bound is None else np.fmin(scale, bound), LEAST_FP8_SCALE)
    return fp8(groups / scale).reshape(product.shape), scale[..., 0]


def rounded(x: Array, dtype: torch.dtype) -> Array:
    return torch.from_numpy(x).to(dtype).float().numpy()


def special_rows(dtype: torch.dtype, columns: int = HIDDEN) -> torch.Tensor:
    """Rows of normal values, and rows with one of all that is special; of a row, the first 128 columns at least are so."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn((24, columns), generator=generator) * 3
    x[1] = NAN
    x[2], x[3], x[4] = 0.0, 2.5, -0.01
    x[5, 3], x[6, 3], x[7, 3:5] = INF, -INF, torch.tensor([INF, -INF])
    x[8], x[9] = INF, -INF
    x[10], x[11] = x[10] * 1e-40, x[11] * 1e-30
    x[12], x[13] = x[12] * 1e37, x[13] * 1e37
    x[13, 7] = NAN
    x[14, :128] = NAN
    x[15, :128] = -0.0
    x[16] = x[16].abs() + 1000
    x[17] = -x[17].abs() - 1000
    x[18, 0::2] = NAN
    x[19] = -NAN
    x[20, 1:] = 0.0
    x[21] *= 1e-6
    return x.to(dtype)


def numbers(x: torch.Tensor) -> Array:
    return x.float().numpy()


def called(op: str, *given: Any) -> list[Any]:
    """The arguments after the call of vLLM's op."""
    getattr(torch.ops.gemmill, VLLM_PREFIX + op if VLLM_PREFIX + op in BY_NAME else op).default(*given)
    return list(given)


def agree(got: torch.Tensor, wanted: Array, what: object = "") -> None:
    """Bit for bit; NaN is NaN."""
    found = got.view(torch.uint8).numpy() if got.dtype.itemsize == 1 else got.numpy()
    same = (found == wanted.reshape(found.shape)) | ((found != found) & (wanted != wanted).reshape(found.shape))
    if found.dtype == f32:
        same &= (np.signbit(found) == np.signbit(wanted).reshape(found.shape)) | np.isnan(found)
    rows = np.unique(np.argwhere(~same)[:, 0])
    assert same.all(), (what, rows, found[~same][:5], wanted.reshape(found.shape)[~same][:5])


def codes_like(x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn, columns: int = HIDDEN) -> torch.Tensor:
    return torch.full((len(x), columns), 0x55, dtype=torch.uint8).view(dtype)


@pytest.fixture(params=DTYPES)
def x(request: pytest.FixtureRequest) -> torch.Tensor:
    return special_rows(DTYPES[request.param])


SCALES = (0.0123, 1.0, 0.0, -0.5, 1e-40, 1e-38, 3e38, INF, NAN)


@pytest.mark.parametrize("scale", SCALES)
def test_static_scaled_fp8_quant(x: torch.Tensor, scale: float) -> None:
    given = torch.tensor([scale])
    codes, *_ = called("static_scaled_fp8_quant", codes_like(x), x, given, None)
    agree(codes, static_fp8(numbers(x), given.numpy()))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("azp", [None, 0, -7, 2**30, 2**31 - 1, -(2**31)])
def test_static_scaled_int8_quant(x: torch.Tensor, scale: float, azp: int | None) -> None:
    given = torch.tensor([scale])
    zero = None if azp is None else torch.tensor([azp], dtype=torch.int32)
    codes, *_ = called("static_scaled_int8_quant", codes_like(x, torch.int8), x, given, zero)
    s = given.numpy()
    agree(codes, int8_rn(numbers(x) / s) if azp is None else with_azp(numbers(x) * (f32(1) / s), np.int64(azp)))


def test_dynamic_scaled_fp8_quant(x: torch.Tensor) -> None:
    for rows in (x, *x[:, None]):
        codes, _, scale = called("dynamic_scaled_fp8_quant", codes_like(rows), rows, torch.full((1,), -1.0))
        wanted = dynamic_fp8(numbers(rows))
        agree(scale, wanted[1][None])
        agree(codes, wanted[0])


@pytest.mark.parametrize("bound", [None, 1.5, 0.0, -1.0, 1e-30, INF, NAN])
def test_dynamic_per_token_scaled_fp8_quant(x: torch.Tensor, bound: float | None) -> None:
    ub = None if bound is None else torch.tensor([bound])
    codes, _, scales, _ = called(
        "dynamic_per_token_scaled_fp8_quant", codes_like(x), x, torch.full((len(x), 1), -1.0), ub
    )
    wanted = token_fp8(numbers(x), None if ub is None else ub.numpy())
    agree(scales, wanted[1])
    agree(codes, wanted[0])


def test_dynamic_scaled_int8_quant(x: torch.Tensor) -> None:
    scales, azps = torch.full((len(x), 1), -1.0), torch.full((len(x), 1), -1, dtype=torch.int32)
    codes, *_ = called("dynamic_scaled_int8_quant", codes_like(x, torch.int8), x, scales, None)
    wanted = token_int8(numbers(x))
    agree(scales, wanted[1])
    agree(codes, wanted[0])
    codes, *_ = called("dynamic_scaled_int8_quant", codes_like(x, torch.int8), x, scales, azps)
    wanted_codes, wanted_scales, wanted_azps = token_int8_azp(numbers(x))
    agree(scales, wanted_scales)
    agree(azps, wanted_azps)
    agree(codes, wanted_codes)


@pytest.mark.parametrize("eps", [1e-10, 0.0, 1e-6])
@pytest.mark.parametrize("group", [1, 16, 24, 32, 64, 128, 256, 512])
def test_codes_of_groups(x: torch.Tensor, group: int, eps: float) -> None:
    x = special_rows(x.dtype, columns=group * (-(-HIDDEN // group)))
    groups = numbers(x).reshape(len(x), -1, group)
    scales = torch.full((len(x), groups.shape[1]), -1.0)
    for power_of_two in (False, True):
        limits = (eps, -448.0, 448.0, power_of_two, False, False)
        _, codes, *_ = called("per_token_group_fp8_quant", x, codes_like(x, columns=x.shape[1]), scales, group, *limits)
        way = "" if not power_of_two else "bits" if group == 128 and x.dtype.itemsize == 2 else "logarithm"
        scale = group_scale(groups, eps, 448.0, way)
        agree(scales, scale[..., 0])
        agree(codes, group_fp8(groups * (f32(1) / scale)))
    codes = codes_like(x, torch.int8, x.shape[1])
    called("per_token_group_quant_int8", x, codes, scales, group, eps, -128.0, 127.0)
    scale = group_scale(groups, eps, 127.0, "")
    agree(scales, scale[..., 0])
    agree(codes, group_int8(groups * (f32(1) / scale)))


@pytest.mark.parametrize("units", range(40))
def test_a_scale_just_above_a_power_of_two_is_that_power_where_its_logarithm_is(units: int) -> None:
    powers = torch.exp2(torch.arange(-30, 60).float())
    x = (powers.view(torch.int32) + units).view(torch.float32)[:, None] * 448.0
    x = x.expand(-1, 32).contiguous()
    scales = torch.full((len(x), 1), -1.0)
    limits = (0.0, -448.0, 448.0, True, False, False)
    called("per_token_group_fp8_quant", x, codes_like(x, columns=32), scales, 32, *limits)
    agree(scales, group_scale(numbers(x), 0.0, 448.0, "logarithm"))


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_packed_scales_of_groups(dtype: str, group: int) -> None:
    x = special_rows(DTYPES[dtype])
    packed = torch.full((-(-HIDDEN // group // 4), len(x)), -1, dtype=torch.int32).t()
    limits = (1e-10, -448.0, 448.0)
    _, codes, *_ = called("per_token_group_fp8_quant_packed", x, codes_like(x), packed, group, *limits)
    groups = numbers(x).reshape(len(x), -1, group)
    scale = group_scale(groups, 1e-10, 448.0, "bits")
    agree(codes, group_fp8(groups * (f32(1) / scale)))
    exponents = np.zeros((len(x), packed.shape[1] * 4), dtype=np.uint8)
    exponents[:, : HIDDEN // group] = scale[..., 0].view(np.uint32) >> 23
    agree(packed.contiguous(), exponents.view(np.int32))


def test_packed_scales_of_what_vllms_op_does_not_take_are_refused() -> None:
    x = torch.ones(4, 256)
    packed = torch.empty(2, 4, dtype=torch.int32).t()
    for given, group, sentence in (
        (x, 128, "input is float32, expected bfloat16 or float16"),
        (x.half(), 64, "group_size is 64, expected 32 or 128"),
    ):
        with pytest.raises(RuntimeError) as error:
            called("per_token_group_fp8_quant_packed", given, codes_like(given), packed, group, 1e-10, -448.0, 448.0)
        assert str(error.value) == f"vllm_per_token_group_fp8_quant_packed: {sentence}"


def exponential(x: torch.Tensor) -> Array:
    """exp(-gate) of the first half, by the same library as the op's."""
    return torch.exp(-x.float()[:, : x.shape[1] // 2]).numpy()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_silu_and_mul_quant(dtype: str, scale: float) -> None:
    x = special_rows(DTYPES[dtype], 2 * HIDDEN)
    given = torch.tensor([scale])
    codes, *_ = called("silu_and_mul_quant", codes_like(x), x, given)
    gate, up = np.split(numbers(x), 2, axis=-1)
    product = rounded(rounded(gate / (f32(1) + exponential(x)), x.dtype) * up, x.dtype)
    agree(codes, static_fp8(product, given.numpy()))


@pytest.mark.parametrize("bound", [None, 0.004, 0.0, INF, NAN])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_silu_and_mul_per_block_quant(dtype: str, bound: float | None) -> None:
    x = special_rows(DTYPES[dtype], 2 * HIDDEN)
    ub = None if bound is None else torch.tensor([bound])
    scales = torch.full((len(x), HIDDEN // 128), -1.0)
    codes, *_ = called("silu_and_mul_per_block_quant", codes_like(x), x, scales, 128, ub, False)
    sigmoid = f32(1) / (f32(1) + exponential(x))
    wanted = silu_block_fp8(numbers(x), sigmoid, None if ub is None else ub.numpy())
    agree(scales, wanted[1])
    agree(codes, wanted[0])


def inverse_rms(x: Array, threads: int, width: int, eps: float) -> f32:
    """Of a row, as a CTA of so many threads sums it; the inverse square root is torch's."""
    sums = [f32(0)] * (-(-threads // 32) * 32)
    for thread in range(threads):
        for start in range(thread * width, len(x), threads * width):
            for value in x[start : start + width].astype(np.longdouble):
                sums[thread] = f32(value * value + np.longdouble(sums[thread]))
    total = f32(0)
    for first in range(0, len(sums), 32):
        warp = sums[first : first + 32]
        for offset in (1, 2, 4, 8, 16):
            warp = [a + b for a, b in zip(warp, warp[offset:] + [f32(0)] * offset, strict=True)]
        total = warp[0] if first == 0 else total + warp[0]
    return f32(torch.rsqrt(torch.tensor(total / f32(len(x)) + f32(eps))).item())


@pytest.mark.parametrize("out", [torch.float8_e4m3fn, torch.int8], ids=["e4m3", "s8"])
@pytest.mark.parametrize(("hidden", "padding"), [(4608, 0), (4608, 3), (100, 0), (1030, 2), (999, 0)])
@pytest.mark.parametrize("group", [0, 64, 128])
@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm(
    group: int, hidden: int, padding: int, out: torch.dtype, with_residual: bool, x: torch.Tensor
) -> None:
    if group and hidden % group:
        return
    generator = torch.Generator().manual_seed(hidden)
    rows = (torch.randn((5, hidden + padding), generator=generator) * 3).to(x.dtype)[:, :hidden]
    rows[3, :2], rows[4] = torch.tensor([NAN, 1.0]), 0.0
    weight = torch.randn(hidden, generator=generator).to(x.dtype)
    residual = torch.randn((5, hidden), generator=generator).to(x.dtype) if with_residual else None
    values = numbers(rows) if residual is None else numbers(rows) + numbers(residual)
    eps, bound = 1e-5, torch.tensor([2.5]) if out is torch.float8_e4m3fn else None
    codes, scales = codes_like(rows, out, hidden), torch.full((5, hidden // group if group else 1), -1.0)
    if group:
        called("rms_norm_per_block_quant", codes, rows, weight, scales, eps, bound, residual, group, False)
    else:
        called("rms_norm_dynamic_per_token_quant", codes, rows, weight, scales, eps, bound, residual)
    threads, width = (512, 4) if group else (min(hidden, 1024), 1 if hidden % 4 or padding % 4 else 4)
    inverse = np.array([[inverse_rms(row, threads, width, eps)] for row in values])
    normed = rounded(rounded(values * inverse, x.dtype) * numbers(weight), x.dtype).reshape(5, -1, group or hidden)
    amax = largest(normed) if bound is None else np.fmin(largest(normed), bound.numpy())
    e4m3_out = out is torch.float8_e4m3fn
    scale = np.fmax(amax / f32(448 if e4m3_out else 127), LEAST_FP8_SCALE if e4m3_out else f32(2.0**-23))
    agree(scales, scale[..., 0])
    scaled = normed / scale if e4m3_out and not group else normed * (f32(1) / scale)
    agree(codes, fp8(scaled) if e4m3_out else int8_rn(scaled))
    if residual is not None:
        assert torch.equal(residual.nan_to_num(), torch.from_numpy(values).to(x.dtype).nan_to_num())


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("hidden", [4608, 1030, 100, 999])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_by_a_given_scale(dtype: str, hidden: int, scale: float) -> None:
    for rows, most in ((4, 1024), (256, 256)):
        x = (torch.randn((rows, hidden), generator=torch.Generator().manual_seed(hidden)) * 3).to(DTYPES[dtype])
        x[3, :2] = torch.tensor([NAN, 1.0])
        x[4:] = x[0]
        weight, given = x[1].clone(), torch.tensor([scale])
        codes, *_ = called("rms_norm_static_fp8_quant", codes_like(x, columns=x.shape[1]), x, weight, given, 1e-5)
        width = math.gcd(16 // x.element_size(), hidden)
        inverse = np.array([[inverse_rms(row, min(hidden // width, most), width, 1e-5)] for row in numbers(x)[:4]])
        normed = rounded(numbers(x)[:4] * inverse * numbers(weight), x.dtype)
        agree(codes[:4], static_fp8(normed, given.numpy()))
        assert rows == 4 or torch.equal(codes[4:].view(torch.uint8), codes[:1].view(torch.uint8).expand(252, -1))


def inverse_rms_in_pairs(x: Array, threads: int, eps: float) -> f32:
    """As inverse_rms, where a thread takes 8 elements at a time and sums them alone first, in pairs."""
    squares = (x * x).astype(np.longdouble)
    ends = (x[::2].astype(np.longdouble) ** 2 + squares[1::2]).astype(f32).reshape(-1, 4)
    turns = ((ends[:, 0] + ends[:, 1]) + ends[:, 2]) + ends[:, 3]
    sums = np.zeros(-(-threads // 32) * 32, dtype=f32)
    for start in range(0, len(turns), threads):
        some = turns[start : start + threads]
        sums[: len(some)] += some
    for _ in range(5):
        sums = sums[::2] + sums[1::2]
    total = f32(0)
    for warp in sums:
        total = total + warp
    return f32(torch.rsqrt(torch.tensor(total / f32(len(x)) + f32(eps))).item())


@pytest.mark.parametrize(("hidden", "padding"), [(4608, 0), (4608, 4), (2048, 8), (1030, 0), (100, 0)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_of_a_sum_by_a_given_scale(dtype: str, hidden: int, padding: int) -> None:
    for rows, most in ((4, 1024), (256, 256)):
        generator = torch.Generator().manual_seed(hidden)
        x = (torch.randn((rows, hidden + padding), generator=generator) * 3).to(DTYPES[dtype])[:, :hidden]
        residual = torch.randn((rows, hidden), generator=generator).to(x.dtype)
        x[4:], residual[4:] = x[0], residual[0]
        weight, given = x[1].clone(), torch.tensor([0.02])
        total = rounded(numbers(x) + numbers(residual), x.dtype)[:4]
        codes, *_ = called(
            "fused_add_rms_norm_static_fp8_quant", codes_like(x, columns=x.shape[1]), x, residual, weight, given, 1e-5
        )
        threads, in_pairs = min(hidden, most), hidden % 8 == 0 and (hidden + padding) % 8 == 0
        inverse = [
            inverse_rms_in_pairs(row, threads, 1e-5) if in_pairs else inverse_rms(row, threads, 1, 1e-5)
            for row in total
        ]
        normed = rounded(total * np.array(inverse)[:, None] * numbers(weight), x.dtype)
        agree(codes[:4], static_fp8(normed, given.numpy()))
        assert np.array_equal(numbers(residual)[:4], total)


@pytest.mark.parametrize(("rows", "most"), [(255, 1024), (256, 256)])
@pytest.mark.parametrize("hidden", [4608, 1030, 100])
@pytest.mark.parametrize("bytes_of_element", [2, 4])
@pytest.mark.parametrize("with_residual", [False, True])
def test_inverse_rms_by_a_given_scale(
    with_residual: bool, bytes_of_element: int, hidden: int, rows: int, most: int
) -> None:
    """To the last bit, of which codes of 8 bits show little."""
    x = torch.randn((4, hidden), generator=torch.Generator().manual_seed(hidden)) * 3
    most_width = 16 // bytes_of_element
    how = VllmSum.by_given_scale(rows, hidden, stride=hidden, most_width=most_width, with_residual=with_residual)
    normed, _ = rms_normed(x, torch.ones(hidden), 1e-5, vllm=how, rounds_once=True)
    width = math.gcd(8 if with_residual else most_width, hidden)
    threads = min(hidden if with_residual else hidden // width, most)
    inverse = [
        inverse_rms_in_pairs(row, threads, 1e-5)
        if with_residual and width == 8
        else inverse_rms(row, threads, 1 if with_residual else width, 1e-5)
        for row in numbers(x)
    ]
    agree(normed, numbers(x) * np.array(inverse)[:, None])


def test_rows_beyond_256_are_summed_by_fewer_threads() -> None:
    row = torch.randn((1, 1024), generator=torch.Generator().manual_seed(0))
    for rows, threads in ((256, 512), (257, 256)):
        codes, scales = codes_like(row.expand(rows, -1), columns=1024), torch.full((rows, 8), -1.0)
        x = row.repeat(rows, 1)
        called("rms_norm_per_block_quant", codes, x, torch.ones(1024), scales, 1e-6, None, None, 128, False)
        normed = numbers(row) * inverse_rms(numbers(row)[0], threads, 4, 1e-6)
        wanted = largest(normed.reshape(8, 128)) / f32(448)
        agree(scales, np.tile(wanted[:, 0], (rows, 1)))


def test_each_of_them_differs_from_ours() -> None:
    """Else it would need no kernels of its own."""
    assert [op.name for op in QUANT_OPS if op.vllm] == [
        VLLM_PREFIX + op.name for op in QUANT_OPS if VLLM_PREFIX + op.name in BY_NAME
    ]
    for op in QUANT_OPS:
        if op.vllm:
            ours = next(own for own in QUANT_OPS if own.name == op.name.removeprefix(VLLM_PREFIX))
            configs = {config for config in op.configs(Arch.SM90A) if config.vllm}
            assert configs and not any(ours.serves(config) for config in configs)


def test_under_vllms_names_they_are_called() -> None:
    import_module("gemmill.compat.vllm.ops")
    for op in QUANT_OPS:
        if op.vllm:
            name = op.name.removeprefix(VLLM_PREFIX)
            assert getattr(torch.ops._C, name).default is getattr(torch.ops.gemmill, op.name).default
