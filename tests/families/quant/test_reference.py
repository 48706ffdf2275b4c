"""References of the quantisation kernels against slow definitions, one value at a time in exact arithmetic."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

from gemmill.families.quant import reference
from gemmill.families.quant.config import Activation, ScaleFormat
from gemmill.vocab import DType

E4M3, S8 = DType.E4M3, DType.S8
INF, NAN = float("inf"), float("nan")
f32 = np.float32


def e4m3_value(code: int) -> Fraction:
    exponent, mantissa = code >> 3 & 15, code & 7
    return (
        Fraction(mantissa, 8) * Fraction(2) ** -6
        if exponent == 0
        else (1 + Fraction(mantissa, 8)) * Fraction(2) ** (exponent - 7)
    )


CODES = [e4m3_value(code) for code in range(0x7F)]


def slow_e4m3(x: float) -> int:
    if math.isnan(x):
        return 0x7F
    sign = 0x80 if math.copysign(1.0, x) < 0 else 0
    if abs(x) >= 448:
        return sign | 0x7E
    nearest = min(range(0x7F), key=lambda code: (abs(CODES[code] - Fraction(abs(x))), code & 1))
    return sign | nearest


def slow_s8(x: float) -> int:
    if math.isnan(x):
        return 0
    return int(min(max(round(Fraction(x)) if math.isfinite(x) else x, -128), 127))


def codes_of(codes: torch.Tensor) -> list[int]:
    return codes.flatten().view(torch.uint8 if codes.dtype is torch.float8_e4m3fn else torch.int8).tolist()


def slow_encode(x: float, out: DType) -> int:
    return slow_e4m3(x) if out is E4M3 else slow_s8(x)


def rows_of(seed: int, rows: int, width: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, width), generator=generator) * 3
    x[0, :3] = torch.tensor([0.0, -0.0, 1e-30])
    return x.to(dtype)


def test_e4m3_codes_at_every_value_midpoint_and_neighbour() -> None:
    values = []
    for low, high in zip(CODES, [*CODES[1:], Fraction(480)], strict=True):
        for point in (low, (low + high) / 2, high):
            values += [
                f32(float(point)),
                np.nextafter(f32(float(point)), f32(0)),
                np.nextafter(f32(float(point)), f32(1000)),
            ]
    values += [0.0, 1e-40, 464.0, 470.0, 3e38, INF, NAN]
    x = torch.tensor([float(v) for v in values], dtype=torch.float32)
    x = torch.cat([x, -x])
    wanted = [slow_e4m3(v) for v in x.tolist()]
    wanted[-1] = 0x7F  # -NaN
    assert codes_of(reference.encode(x, E4M3)) == wanted


def test_s8_codes_at_every_half() -> None:
    halves = torch.arange(-262, 263).float() / 2
    x = torch.cat([halves, torch.nextafter(halves, torch.tensor(1e9)), torch.tensor([INF, -INF, NAN, 3e38, -0.0])])
    assert codes_of(reference.encode(x, S8)) == [slow_s8(v) for v in x.tolist()]


def test_azp_saturates_at_both_steps() -> None:
    x = torch.tensor([0.5, 1.5, -3e9, 3e9, NAN, INF])
    assert codes_of(reference.encode_with_azp(x, torch.tensor([5], dtype=torch.int32))) == [5, 7, -128, 127, 5, 127]
    largest = torch.tensor([2**31 - 1], dtype=torch.int32)
    assert codes_of(reference.encode_with_azp(torch.tensor([-3e9, 3e9]), largest)) == [-1, 127]


def test_maximum_leaves_nan_out() -> None:
    x = torch.tensor([[1.0, NAN, -3.0], [NAN, NAN, NAN], [0.0, -INF, 1.0]])
    assert reference.absolute_maximum(x).flatten().tolist() == [3.0, 0.0, INF]


def test_divide_is_a_division() -> None:
    x = (0x3F800000 + torch.arange(0, 1 << 16, dtype=torch.int32)).view(torch.float32)
    assert (reference.divide(x, 448.0).numpy() == x.numpy() / f32(448)).all()


@pytest.mark.parametrize("scale", [1.0, 1.5, 2.0**-20, 2.0**-20 * (1 + 2**-23), 448.0, 1e-12, 1e30, INF])
def test_powers_of_two_round_up(scale: float) -> None:
    x = torch.tensor([scale], dtype=torch.float32)
    wanted = INF if scale == INF else 2.0 ** math.ceil(math.log2(max(float(x), float(f32(1e-10)))))
    assert reference.round_up_to_power_of_two(x).item() == wanted


def test_packed_scales_are_bytes_of_exponents_padded_with_zeros() -> None:
    exponents = torch.randint(100, 150, (5, 6), generator=torch.Generator().manual_seed(0))
    packed = reference.pack_ue8m0(torch.exp2(exponents.float() - 127))
    assert packed.shape == (5, 2) and packed.stride() == (1, 8)
    for row in range(5):
        for group in range(8):
            byte = packed[row, group // 4].item() >> (8 * (group % 4)) & 255
            assert byte == (exponents[row, group] if group < 6 else 0)


def silu_up(gate: float, up: float) -> f32:
    e = f32(torch.exp(torch.tensor(-gate, dtype=torch.float32)).item())
    return f32(gate) * (f32(1) / (f32(1) + e)) * f32(up)


def gelu_erf_up(gate: float, up: float) -> float:
    return 0.5 * gate * (1 + math.erf(gate / math.sqrt(2))) * up


def gelu_tanh_up(gate: float, up: float) -> float:
    return 0.5 * gate * (1 + math.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * up


def test_silu_rounds_each_operation() -> None:
    x = rows_of(1, 7, 32)
    wanted = [[silu_up(g, u) for g, u in zip(row[:16], row[16:], strict=True)] for row in x.tolist()]
    assert reference.activated(x, Activation.SILU).tolist() == [[float(v) for v in row] for row in wanted]


@pytest.mark.parametrize(
    ("activation", "slow"), [(Activation.GELU_ERF, gelu_erf_up), (Activation.GELU_TANH, gelu_tanh_up)]
)
def test_gelu_is_gelu(activation: Activation, slow: Callable[[float, float], float]) -> None:
    x = rows_of(1, 7, 32)
    wanted = torch.tensor([[slow(g, u) for g, u in zip(row[:16], row[16:], strict=True)] for row in x.tolist()])
    # 1 + tanh and 1 + erf cancel for negative gates: the error is that of one f32 rounding of a number near 1.
    assert torch.allclose(reference.activated(x, activation), wanted, rtol=1e-6, atol=3e-6)


@pytest.mark.parametrize("out", [E4M3, S8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_group_quant(out: DType, dtype: torch.dtype) -> None:
    x = rows_of(2, 3, 128, dtype)
    codes, scales = reference.group_quant(x, 64, out, smallest_amax=1e-10)
    for row, values in enumerate(x.float().numpy()):
        for group in range(2):
            part = values[64 * group : 64 * group + 64]
            scale = max(abs(part).max(), f32(1e-10)) / f32(reference.CODE_MAX[out])
            assert scales[row, group].item() == scale
            assert codes_of(codes[row, 64 * group : 64 * group + 64]) == [
                slow_encode(float(v / scale), out) for v in part
            ]


def test_group_scale_is_bounded_then_held_above_the_smallest() -> None:
    x = torch.cat([torch.full((1, 64), 448.0), torch.full((1, 64), 1e-9), torch.zeros((1, 64))])
    settings = {"scale_ub": torch.tensor([0.25]), "smallest_scale": 2.0**-10}
    codes, scales = reference.group_quant(x, 64, E4M3, **settings)
    assert scales.flatten().tolist() == [0.25, 2.0**-10, 2.0**-10]
    assert codes_of(codes[:, 0]) == [0x7E, slow_e4m3(float(f32(1e-9) * 1024)), 0]
    _, rounded = reference.group_quant(
        x[:1], 64, E4M3, scale_format=ScaleFormat.POWER_OF_TWO, scale_ub=torch.tensor([0.3])
    )
    assert rounded.item() == 0.5


def test_e4m3_token_quant_divides() -> None:
    x = rows_of(3, 4, 100)
    codes, scales = reference.token_quant(x, E4M3)
    bounded_codes, bounded = reference.token_quant(x, E4M3, scale_ub=torch.tensor([1.5]))
    for row, values in enumerate(x.float().numpy()):
        scale = f32(abs(values).max() / f32(448))
        assert scales[row].item() == scale
        assert codes_of(codes[row]) == [slow_e4m3(float(v / scale)) for v in values]
        assert bounded[row].item() == f32(1.5) / f32(448)
        assert codes_of(bounded_codes[row]) == [slow_e4m3(float(v / f32(bounded[row].item()))) for v in values]
    assert reference.token_quant(torch.zeros(1, 8), E4M3)[1].item() == f32(1 / (448 * 512))


def test_s8_token_quant_multiplies_by_the_reciprocal_and_keeps_a_zero_scale() -> None:
    x = torch.cat([rows_of(4, 4, 100), torch.zeros(1, 100, dtype=torch.bfloat16)])
    codes, scales = reference.token_quant(x, S8)
    for row, values in enumerate(x.float().numpy()[:4]):
        amax = abs(values).max()
        assert scales[row].item() == amax / f32(127)
        assert codes_of(codes[row]) == [slow_s8(float(v * (f32(127) / amax))) for v in values]
    assert scales[4].item() == 0.0 and codes_of(codes[4]) == [0] * 100


def test_gated_s8_token_quant_divides_by_a_scale_above_the_smallest() -> None:
    x = rows_of(5, 2, 64)
    codes, scales = reference.token_quant(x, S8, activation=Activation.SILU)
    values = reference.activated(x, Activation.SILU).numpy()
    for row in range(2):
        scale = abs(values[row]).max() / f32(127)
        assert scales[row].item() == scale
        assert codes_of(codes[row]) == [slow_s8(float(v / scale)) for v in values[row]]
    assert reference.token_quant(torch.zeros(1, 8), S8, activation=Activation.SILU)[1].item() == 2.0**-23


def test_token_quant_with_azp() -> None:
    x = rows_of(6, 5, 77)
    x[1] = x[1].abs() + 4
    codes, scales, azps = reference.token_quant_with_azp(x)
    for row, values in enumerate(x.float().numpy()):
        low, high = values.min(), values.max()
        scale = (high - low) / f32(255)
        azp = round(float(f32(-128) - low / scale))
        assert (scales[row].item(), azps[row].item()) == (scale, azp)
        reciprocal = f32(1) / scale
        assert codes_of(codes[row]) == [min(max(round(float(v * reciprocal)) + azp, -128), 127) for v in values]


@pytest.mark.parametrize("hidden", [64, 4096, 40_000])
@pytest.mark.parametrize("center", [1000.0, -1000.0])
def test_rows_far_from_zero_are_coded_so_that_a_gemm_over_them_fits_32_bits(hidden: int, center: float) -> None:
    """With weights of the largest absolute value, all of one sign: the sums of (code - zero point) x weight."""
    x = (center + torch.rand(3, hidden, generator=torch.Generator().manual_seed(1))).bfloat16().float()
    x[0, 0] += 0.5 * center / abs(center)  # no row of one value
    codes, scales, azps = reference.token_quant_with_azp(x, reference.least_step_of(hidden))
    sums = (codes.long() - azps.long()).sum(dim=-1) * 128
    assert sums.abs().max() < 2**31
    assert torch.allclose((codes.float() - azps) * scales, x, rtol=0, atol=0.51 * scales.max().item())
    unbounded, _, far = reference.token_quant_with_azp(x)
    if hidden > 64:
        assert ((unbounded.long() - far.long()).sum(dim=-1) * 128).abs().max() >= 2**31, "what the bound is for"


def test_rows_that_hold_zero_are_coded_as_ever() -> None:
    x = rows_of(8, 4, 60_000)
    for wanted, got in zip(
        reference.token_quant_with_azp(x),
        reference.token_quant_with_azp(x, reference.least_step_of(60_000)),
        strict=True,
    ):
        assert torch.equal(wanted, got)


@pytest.mark.parametrize("value", [3.0, -0.01, 0.0])
def test_a_row_of_one_value_keeps_it(value: float) -> None:
    codes, scale, azp = reference.token_quant_with_azp(torch.full((1, 9), value))
    assert azp.item() == 0
    assert codes_of(codes) == [127 if value > 0 else -127 if value < 0 else 0] * 9
    assert scale.item() * codes_of(codes)[0] == pytest.approx(value, rel=1e-6)


def test_groups_with_azp_are_rows_with_azp() -> None:
    x = rows_of(7, 3, 96)
    codes, scales, azps = reference.group_quant_with_azp(x, 32)
    wanted = reference.token_quant_with_azp(x.view(9, 32))
    assert codes_of(codes) == codes_of(wanted[0])
    assert (
        scales.flatten().tolist() == wanted[1].flatten().tolist()
        and azps.flatten().tolist() == wanted[2].flatten().tolist()
    )


def test_static_quant() -> None:
    x = rows_of(8, 4, 50)
    scale = torch.tensor([0.0371])
    s = f32(scale.item())
    values = x.float().numpy().ravel()
    assert codes_of(reference.static_quant(x, scale, E4M3)) == [slow_e4m3(float(v * (f32(1) / s))) for v in values]
    assert codes_of(reference.static_quant(x, scale, S8)) == [slow_s8(float(v / s)) for v in values]
    azp = torch.tensor([-9], dtype=torch.int32)
    wanted = [min(max(round(float(v * (f32(1) / s))) - 9, -128), 127) for v in values]
    assert codes_of(reference.static_quant(x, scale, S8, azp=azp)) == wanted


def test_tensor_quant() -> None:
    x = rows_of(9, 4, 50)
    codes, scale = reference.tensor_quant(x, E4M3)
    values = x.float().numpy().ravel()
    s = abs(values).max() / f32(448)
    assert scale.item() == s
    assert codes_of(codes) == [slow_e4m3(float(v * (f32(1) / s))) for v in values]
    assert reference.tensor_quant(torch.zeros(0, 4), E4M3)[1].item() == f32(1 / (448 * 512))


def test_infinity_makes_the_rest_of_its_group_zero_and_itself_nan() -> None:
    x = torch.tensor([[INF, 1.0, -1.0, NAN] * 16])
    codes, scale = reference.group_quant(x, 64, E4M3)
    assert scale.item() == INF
    assert codes_of(codes)[:4] == [0x7F, 0, 0x80, 0x7F]


@pytest.mark.parametrize("out", [E4M3, S8])
@pytest.mark.parametrize("group", [0, 32])
@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm_quant(out: DType, group: int, with_residual: bool) -> None:
    x, weight = rows_of(10, 3, 96), rows_of(11, 1, 96)[0]
    residual = rows_of(12, 3, 96) if with_residual else None
    codes, scales, added = reference.rms_norm_quant(x, weight, 1e-5, out, group_size=group, residual=residual)
    size = group or 96
    for row in range(3):
        values = x[row].float().numpy()
        if residual is not None:
            values = values + residual[row].float().numpy()
            assert added is not None and torch.equal(added[row], torch.from_numpy(values).bfloat16())
        squares = (values * values).reshape(-1, 4)
        runs = (squares[:, 0] + squares[:, 1]) + (squares[:, 2] + squares[:, 3])
        mean = f32(math.fsum(map(float, runs)) / 96 + float(f32(1e-5)))
        inverse = f32(1 / math.sqrt(float(mean)))
        normed = torch.from_numpy(values * inverse).bfloat16().float() * weight.float()
        normed = normed.bfloat16().float().numpy()
        for start in range(0, 96, size):
            part = normed[start : start + size]
            scale = abs(part).max() / f32(reference.CODE_MAX[out])
            assert scales[row, start // size].item() == scale
            wanted = [slow_encode(float(v / scale if out is E4M3 else v * (f32(1) / scale)), out) for v in part]
            assert codes_of(codes[row, start : start + size]) == wanted


@pytest.mark.parametrize("out", [E4M3, S8])
def test_no_tokens(out: DType) -> None:
    x = torch.zeros((0, 128))
    assert reference.group_quant(x, 64, out)[1].shape == (0, 2)
    assert reference.token_quant(x, out)[1].shape == (0, 1)
    assert reference.static_quant(x, torch.ones(1), out).shape == (0, 128)
