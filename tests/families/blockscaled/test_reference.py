"""References of block-scaled quantisation against slow definitions, one value at a time in exact arithmetic."""

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch

from gemmill.formats.codes import decode, encode, pack, two_to, unpack
from gemmill.formats.quantise import BlockScaled, dequantise, global_scale_of, quantise, quantise_experts, unswizzle
from gemmill.vocab.float_type import E2M1, E2M3, E3M2, E4M3, E5M2, UE4M3, UE8M0, FloatType
from gemmill.vocab.format import BLOCK_SCALED, MXFP4, MXFP6, MXFP8, MXFP8_E5M2, NVFP4, Format, ScaleRounding

INF, NAN = math.inf, math.nan
UP, OCP = ScaleRounding.UP, ScaleRounding.OCP
f32 = np.float32
MX = [kind for kind in BLOCK_SCALED if not kind.has_global_scale]


def slow_code(x: Fraction | float, kind: FloatType, negative: bool = False) -> int:
    """Nearest code by trying all: of two equally near the even one."""
    if isinstance(x, float) and not math.isfinite(x):
        if math.isnan(x):
            return kind.last_code if kind.nan_code is None else kind.nan_code
        x, negative = Fraction(kind.maximum), x < 0
    magnitude = min(abs(Fraction(x)), Fraction(kind.maximum))
    code = min(range(kind.last_code + 1), key=lambda code: (abs(Fraction(kind.value(code)) - magnitude), code & 1))
    return code + ((1 << (kind.exponent_bits + kind.mantissa_bits)) if negative or x < 0 else 0)


def probes(kind: FloatType) -> list[float]:
    """Every number of a type, every boundary between two, the f32 neighbours of each, and values far from all."""
    numbers = sorted({abs(value) for value in kind.values if math.isfinite(value)})
    middles = [(low + high) / 2 for low, high in pairwise(numbers)]
    exact = [*numbers, *middles, kind.maximum * 1.03, kind.maximum * 4, 1e-30, 1e-42]
    near = [float(np.nextafter(f32(value), f32(end))) for value in exact for end in (0.0, INF)]
    return [sign * value for value in exact + near for sign in (1.0, -1.0)] + [INF, -INF, NAN]


@pytest.mark.parametrize("kind", [E2M1, E2M3, E3M2, E4M3, E5M2], ids=str)
def test_encoding_of_every_number_and_boundary(kind: FloatType) -> None:
    values = probes(kind)
    found = encode(torch.tensor(values), kind).tolist()
    wanted = [slow_code(value, kind, math.copysign(1.0, value) < 0) for value in values]
    assert found == wanted


def test_scales_of_nvfp4_have_no_sign() -> None:
    values = [value for value in probes(UE4M3) if not value < 0 and math.copysign(1.0, value) > 0]
    assert encode(torch.tensor(values), UE4M3).tolist() == [slow_code(value, UE4M3) for value in values]


@pytest.mark.parametrize("kind", [E2M1, E2M3, E3M2, E4M3, E5M2], ids=str)
def test_codes_survive_decoding(kind: FloatType) -> None:
    codes = torch.arange(1 << kind.bits, dtype=torch.uint8)
    finite = codes[decode(codes, kind).isfinite()]
    assert torch.equal(encode(decode(finite, kind), kind), finite)
    assert torch.equal(unpack(pack(codes, kind.bits), kind.bits), codes)


@pytest.mark.parametrize(("kind", "dtype"), [(E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)])
def test_eight_bit_codes_are_torchs(kind: FloatType, dtype: torch.dtype) -> None:
    values = torch.randn(1 << 16) * torch.exp2(torch.randint(-20, 12, (1 << 16,)).float())
    values = values.clamp(-kind.maximum, kind.maximum)
    assert torch.equal(encode(values, kind), values.to(dtype).view(torch.uint8))


def test_powers_of_two() -> None:
    exponents = torch.arange(-149, 128, dtype=torch.int32)
    assert two_to(exponents).double().tolist() == [2.0**exponent for exponent in range(-149, 128)]


def test_packing_by_hand() -> None:
    """fp4: the first code in the low nibble. fp6: LightX2V's order, a in bits 0 to 5, b in bits 6 to 11, and so on."""
    assert pack(torch.tensor([[1, 2, 15, 0]]), 4).tolist() == [[0x21, 0x0F]]
    a, b, c, d = 0b101011, 0b110100, 0b011001, 0b100111
    assert pack(torch.tensor([a, b, c, d]), 6).tolist() == [
        (b & 3) << 6 | a,
        (c & 15) << 4 | b >> 2,
        d << 2 | c >> 4,
    ]
    assert pack(torch.tensor([7, 255]), 8).tolist() == [7, 255]
    assert unpack(torch.tensor([0x21, 0x0F], dtype=torch.uint8), 4).tolist() == [1, 2, 15, 0]


def slow_exponent(amax: float, kind: FloatType, rounding: ScaleRounding) -> int:
    """By trying all: the least that saturates nothing, or the one whose power of two is the specification's."""
    if amax == 0:
        return -127
    if math.isinf(amax):
        return 127
    if rounding is UP:
        fits = (e for e in range(-400, 400) if Fraction(2) ** e * Fraction(kind.maximum) >= Fraction(amax))
        return min(max(next(fits), -127), 127)
    floor = next(e for e in range(400, -400, -1) if Fraction(2) ** e <= Fraction(amax))
    return min(max(floor - kind.greatest_exponent, -127), 127)


@pytest.mark.parametrize("rounding", ScaleRounding)
@pytest.mark.parametrize("format", MX, ids=str)
def test_scales_at_their_boundaries(format: Format, rounding: ScaleRounding) -> None:
    """amax = (1, largest fraction) * 2^e, and one f32 to either side, from the subnormals to the largest."""
    exact = [s * 2.0**e for e in (-149, -140, -127, -126, -120, -9, 0, 3, 100, 119) for s in (1.0, format.code.maximum)]
    exact = [value for value in exact if value < 2.0**128]
    near = [float(np.nextafter(f32(value), f32(end))) for value in exact for end in (0.0, INF)]
    values = [0.0, 3.4e38, INF, *exact, *near]
    x = torch.zeros(len(values), 32)
    x[:, 5] = -torch.tensor(values)
    assert quantise(x, format, rounding=rounding).scales[:, 0].tolist() == [
        slow_exponent(value, format.code, rounding) + 127 for value in values
    ]


def test_every_scale_byte_is_reached_and_decodes() -> None:
    """The 255 ue8m0 numbers: a group whose largest value is 6 * 2^e is exact, from 2^-127 on."""
    x = torch.tensor(E2M1.values[:8] * 4, dtype=torch.float64) * torch.exp2(
        torch.arange(-127, 126, dtype=torch.float64)
    ).unsqueeze(1)
    found = quantise(x.float(), MXFP4)
    assert found.scales.flatten().tolist() == list(range(253))
    assert torch.equal(dequantise(found, dtype=torch.float64), x)
    scales = torch.arange(255, dtype=torch.uint8).unsqueeze(1)
    every = BlockScaled(format=MXFP4, codes=torch.full((255, 16), 0x22, dtype=torch.uint8), scales=scales)
    assert every.values()[:, 0].tolist() == [2.0 ** (byte - 127) for byte in range(255)]


def test_up_is_what_lightx2v_does_with_bf16() -> None:
    """Its kernels round amax * fl(1/6) (mxfp4) or amax / max to a power of two, upwards by bits, in f32: the same bytes for
    every bf16 from the smallest normal number on that gives a normal scale."""
    amax = torch.arange(0x0180, 0x7F80, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    for format in (MXFP4, MXFP6, MXFP8):
        largest = torch.full_like(amax, format.code.maximum)
        quotient = amax * (1.0 / 6.0) if format is MXFP4 else amax / largest
        bytes_ = (quotient.view(torch.int32) + 0x7FFFFF) >> 23
        normal = quotient >= 2.0**-126
        x = torch.zeros(amax.numel(), 32)
        x[:, 0] = amax
        assert torch.equal(quantise(x, format).scales[normal, 0].int(), bytes_[normal])


@pytest.mark.parametrize("rounding", ScaleRounding)
@pytest.mark.parametrize("format", MX, ids=str)
def test_mx_codes_one_by_one(format: Format, rounding: ScaleRounding) -> None:
    x = torch.randn(6, 2 * format.group) * torch.exp2(torch.randint(-130, 120, (6, 1)).float())
    x[1, :4] = torch.tensor([-0.0, 0.0, NAN, 1e-44])
    x[2, 3] = -INF
    x[3, :32] = 0.0
    x[4, :32] = NAN
    found = quantise(x, format, rounding=rounding)
    codes = unpack(found.codes, format.code.bits)
    for row in range(6):
        for group in range(2):
            values = x[row, group * 32 : group * 32 + 32].tolist()
            amax = max((abs(value) for value in values if not math.isnan(value)), default=0.0)
            exponent = slow_exponent(amax, format.code, rounding)
            assert found.scales[row, group] == exponent + 127
            wanted = [
                slow_code(
                    Fraction(value) / Fraction(2) ** exponent if math.isfinite(value) else value,
                    format.code,
                    math.copysign(1.0, value) < 0,
                )
                for value in values
            ]
            assert codes[row, group * 32 : group * 32 + 32].tolist() == wanted


def test_ocp_saturates_where_up_does_not() -> None:
    """A group whose largest value is 7: 2^floor(log2 7) / 2^2 is 1, so 7 becomes 6; upwards it is 2, and 7 becomes 8."""
    x = torch.zeros(1, 32)
    x[0, 0] = 7.0
    assert dequantise(quantise(x, MXFP4, rounding=OCP))[0, 0] == 6.0
    assert dequantise(quantise(x, MXFP4, rounding=UP))[0, 0] == 8.0


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_nvfp4_codes_one_by_one(dtype: torch.dtype, per_row: bool) -> None:
    """Two roundings before the scale's, one before the code's; the division by the scale is exact arithmetic here, which
    shows that rounding it moves no code."""
    x = (torch.randn(8, 48) * torch.exp2(torch.randint(-6, 6, (8, 3)).float()).repeat_interleave(16, 1)).to(dtype)
    x[1, :16] = 0.0
    x[2, 16] = x.abs().amax()
    x[2, :16] = torch.linspace(-1.0, 1.0, 16) * (x[2, 16].float() * 2.0**-17)
    x[3, :3] = torch.tensor([NAN, -0.0, 0.0])
    global_scale = global_scale_of(x, per_row=per_row)
    found = quantise(x, NVFP4, global_scale=global_scale)
    codes = unpack(found.codes, 4)
    for row in range(8):
        factor = f32(global_scale.flatten()[row if per_row else 0].item())
        for group in range(3):
            values = x[row, group * 16 : group * 16 + 16].float().tolist()
            amax = max(f32(abs(value)) for value in values if not math.isnan(value))
            scale = slow_code(float(f32(f32(factor * amax) / f32(6.0))), UE4M3)
            assert found.scales[row, group] == scale
            for value, code in zip(values, codes[row, group * 16 : group * 16 + 16].tolist(), strict=True):
                if scale == 0:
                    assert code == 0
                elif math.isnan(value):
                    assert code == 7
                else:
                    scaled = Fraction(float(f32(f32(value) * factor))) / Fraction(UE4M3.value(scale))
                    assert code == slow_code(scaled, E2M1, math.copysign(1.0, value) < 0)
    assert found.scales[1, 0] == 0 and found.scales[2, 0] < 8, "no group has a zero and a subnormal scale"


def test_nvfp4_division_moves_no_code() -> None:
    """For every scale: x * global at every boundary between codes, and up to three f32 to either side."""
    for byte in range(1, 127):
        scale = UE4M3.value(byte)
        edges = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=torch.float64) * scale
        bits = edges.float().view(torch.int32).unsqueeze(1) + torch.arange(-3, 4, dtype=torch.int32)
        products = bits.view(torch.float32)
        found = encode(products / scale, E2M1).tolist()
        wanted = [[slow_code(Fraction(p) / Fraction(scale), E2M1) for p in row] for row in products.tolist()]
        assert found == wanted


def test_nvfp4_codes_are_of_the_product_with_the_global_scale() -> None:
    """x * global exactly on the boundary between 2 and 3 of scale 1.125 gives the even code, that of 2: dividing x by the scale
    first would give a few of these groups the code of 3."""
    factors = torch.linspace(1.0, 4.0, 2001)
    x = torch.zeros(2001, 16)
    x[:, 0] = 6 * 1.125 / factors
    x[:, 1] = 2.5 * 1.125 / factors
    found = quantise(x, NVFP4, global_scale=factors.unsqueeze(1))
    boundary = x[:, 1] * factors == 2.5 * 1.125
    assert boundary.sum() > 1000 and (found.scales == 0x39).all()
    assert (unpack(found.codes, 4)[boundary, 1] == 4).all()
    assert (x[boundary, 1] / 1.125 * factors[boundary] > 2.5).any()


def test_nvfp4_is_what_vllms_reference_does_where_reciprocals_are_exact() -> None:
    """vLLM: scale = e4m3(global * (amax / 6)), x * (1 / (scale / global)). With global a power of two and amax six times
    one, both orders are exact."""
    x = torch.tensor(E2M1.values * 2).repeat(3, 1) * torch.tensor([[1.0], [4.0], [0.5]])
    global_scale = torch.tensor([16.0])
    found = quantise(x, NVFP4, global_scale=global_scale)
    assert decode(found.scales, UE4M3).tolist() == [[16.0, 16.0], [64.0, 64.0], [8.0, 8.0]]
    assert unpack(found.codes, 4).tolist() == [list(range(16)) * 2] * 3
    assert torch.equal(dequantise(found, global_scale=global_scale), x)


def test_global_scale() -> None:
    x = torch.tensor([[1.0, -6.0, NAN], [0.0, 0.0, -0.0]])
    assert global_scale_of(x).tolist() == [448.0]
    assert global_scale_of(x, per_row=True).tolist() == [[448.0], [1.0]]
    info = torch.finfo(torch.float32)
    assert global_scale_of(torch.tensor([[1e-38]])).tolist() == [info.max]
    assert global_scale_of(torch.tensor([[INF]])).tolist() == [info.tiny]
    assert global_scale_of(torch.zeros(0, 16)).tolist() == [1.0]
    assert global_scale_of(torch.zeros(0, 16), per_row=True).shape == (0, 1)


def test_the_largest_value_of_a_tensor_has_the_largest_scale_and_code() -> None:
    x = torch.randn(32, 64) * 1e-3
    found = quantise(x, NVFP4, global_scale=global_scale_of(x))
    row, column = divmod(int(x.abs().argmax()), 64)
    assert found.scales[row, column // 16] == UE4M3.last_code
    assert unpack(found.codes, 4)[row, column] & 7 == 7


@pytest.mark.parametrize("format", BLOCK_SCALED, ids=str)
def test_every_product_survives_a_round_trip(format: Format) -> None:
    """Every code times every scale: dequantised exactly, and quantised back to the same values."""
    code, scale = format.code, format.scale
    codes = torch.tensor([c for c, value in enumerate(code.values) if math.isfinite(value)], dtype=torch.uint8)
    codes = torch.cat([codes, codes.new_zeros(-codes.numel() % format.group)])
    scales = torch.arange(scale.last_code + 1, dtype=torch.uint8)
    matrix = BlockScaled(
        format=format,
        codes=pack(codes, code.bits).repeat(scales.numel(), 1),
        scales=scales.unsqueeze(1).repeat(1, codes.numel() // format.group),
    )
    wanted = [[code.value(c) * scale.value(s) for c in codes.tolist()] for s in scales.tolist()]
    values = dequantise(matrix, dtype=torch.float64)
    assert values.tolist() == wanted
    if format.has_global_scale:
        again = quantise(values.float(), format, global_scale=torch.ones(1))
    else:
        in_f32 = values[: 255 - code.greatest_exponent]
        again, values = quantise(in_f32.float(), format), in_f32
    assert torch.equal(dequantise(again, dtype=torch.float64), values)


def test_decoding_divides_by_the_global_scale() -> None:
    x = torch.randn(4, 32)
    global_scale = global_scale_of(x, per_row=True)
    found = quantise(x, NVFP4, global_scale=global_scale)
    values = dequantise(found, global_scale=global_scale)
    for row in range(4):
        products, factor = found.values()[row].tolist(), global_scale[row].item()
        assert values[row].tolist() == [float(f32(p) / f32(factor)) for p in products]
    assert torch.equal(dequantise(found, global_scale=global_scale, dtype=torch.bfloat16), values.bfloat16())
    assert ((values - x).abs() <= 0.26 * x.abs().amax()).all()


def test_experts_are_quantised_one_by_one() -> None:
    """Rows before the first expert and after the last belong to none; the second expert is empty."""
    x, offsets = torch.randn(140, 96), torch.tensor([2, 7, 7, 137], dtype=torch.int32)
    factors = torch.tensor([100.0, 200.0, 300.0])
    found = quantise_experts(x, offsets, NVFP4, global_scales=factors)
    assert found.scale_offsets.tolist() == [0, 128, 128, 384]
    assert tuple(found.scales.shape) == (384, 8)
    assert not found.codes[:2].any() and not found.codes[137:].any()
    for expert, (start, end, first, last) in enumerate([(2, 7, 0, 128), (7, 7, 128, 128), (7, 137, 128, 384)]):
        alone = quantise(x[start:end], NVFP4, global_scale=factors[expert : expert + 1])
        assert torch.equal(found.codes[start:end], alone.codes)
        assert torch.equal(unswizzle(found.scales[first:last], end - start, 6), alone.scales)


def test_experts_of_mx_formats() -> None:
    x = torch.randn(5, 64)
    found = quantise_experts(x, torch.tensor([0, 5]), MXFP6, rounding=OCP)
    alone = quantise(x, MXFP6, rounding=OCP)
    assert torch.equal(found.codes, alone.codes) and torch.equal(unswizzle(found.scales, 5, 2), alone.scales)
    assert quantise_experts(x[:0], torch.tensor([0]), MXFP6).scales.shape == (0, 4)


@pytest.mark.parametrize("format", BLOCK_SCALED, ids=str)
@pytest.mark.parametrize("shape", [(0, 64), (3, 0)])
def test_nothing_to_quantise(format: Format, shape: tuple[int, int]) -> None:
    factor = torch.ones(1) if format.has_global_scale else None
    found = quantise(torch.zeros(shape), format, global_scale=factor)
    assert found.codes.shape == (shape[0], format.code_bytes(shape[1]))
    assert dequantise(found).shape == shape


def small(format: Format = MXFP4, **changes: torch.Tensor) -> BlockScaled:
    fields = {
        "codes": torch.zeros(2, format.code_bytes(64), dtype=torch.uint8),
        "scales": torch.zeros(2, format.scale_count(64), dtype=torch.uint8),
    }
    return BlockScaled(format=format, **fields | changes)


u8 = torch.uint8


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            lambda: quantise(torch.zeros(2, 40), MXFP4),
            "mxfp4 takes K in multiples of its group of 32, got K = 40: pad K with zeros to 64",
        ),
        (
            lambda: quantise(torch.zeros(2, 16), NVFP4),
            "quantisation to nvfp4 got no global scale, and nvfp4 needs one",
        ),
        (
            lambda: quantise(torch.zeros(2, 32), MXFP8, global_scale=torch.ones(1)),
            "quantisation to mxfp8 got a global scale, and mxfp8 takes none",
        ),
        (
            lambda: quantise(torch.zeros(2, 16), NVFP4, global_scale=torch.zeros(1)),
            "global scale 0 is 0.0, expected a finite number above zero: it is 2688 / largest absolute value, and 1 for a "
            "tensor of zeros",
        ),
        (
            lambda: dequantise(small(NVFP4), global_scale=torch.tensor([[1.0], [NAN]])),
            "global scale 1 is nan, expected a finite number above zero: it is 2688 / largest absolute value, and 1 for a "
            "tensor of zeros",
        ),
        (
            lambda: small(codes=torch.zeros(2, 40, dtype=u8)),
            "mxfp4 packs a group of 32 codes into 16 bytes, got rows of 40 bytes: no whole number of groups",
        ),
        (
            lambda: small(codes=torch.zeros(2, 64)),
            "codes of mxfp4 are torch.float32 of 2 dimensions, expected uint8 of 2: view them as torch.uint8",
        ),
        (
            lambda: small(scales=torch.zeros(4, dtype=u8)),
            "scales of mxfp4 are torch.uint8 of 1 dimensions, expected uint8 of 2: view them as torch.uint8",
        ),
        (
            lambda: small(scales=torch.zeros(128, 4, dtype=u8)),
            "scales of mxfp4 are [128, 4], expected [2, 2] for 2 rows of K = 64, not swizzled",
        ),
        (
            lambda: small(scales=torch.tensor([[0, 254], [255, 0]], dtype=u8)),
            "scale [1, 0] of mxfp4 is byte 255, which is no ue8m0 number: bytes 0 to 254 are",
        ),
        (
            lambda: small(NVFP4, scales=torch.tensor([[0, 126, 0, 0], [0, 0, 0, 127]], dtype=u8)),
            "scale [1, 3] of nvfp4 is byte 127, which is no ue4m3 number: bytes 0 to 126 are",
        ),
        (
            lambda: small(NVFP4, scales=torch.full((2, 4), 0x80, dtype=u8)),
            "scale [0, 0] of nvfp4 is byte 128, which is no ue4m3 number: bytes 0 to 126 are",
        ),
        (
            lambda: BlockScaled(
                format=Format(name="fp8", code=E4M3, group=128, scale=E4M3),
                codes=torch.zeros(1, 128, dtype=u8),
                scales=torch.zeros(1, 1, dtype=u8),
            ),
            "fp8 has no block scales of one byte: the formats that have are nvfp4, mxfp4, mxfp6, mxfp6_e2m3, mxfp8, mxfp8_e5m2",
        ),
    ],
)
def test_sentences(wrong: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        wrong()
    assert str(caught.value) == sentence


def test_e5m2_has_codes_that_are_no_numbers() -> None:
    """An infinite or NaN e5m2 code is not made by quantisation but of an infinite one only NaN: it saturates."""
    x = torch.zeros(1, 32)
    x[0, :3] = torch.tensor([INF, -INF, NAN])
    assert unpack(quantise(x, MXFP8_E5M2).codes, 8)[0, :3].tolist() == [0x7B, 0xFB, 0x7F]
    assert UE8M0.value(int(quantise(x, MXFP8_E5M2).scales[0, 0])) == 2.0**127
