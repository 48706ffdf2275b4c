"""The formats and their types, against the tables of the OCP MX specification 1.0 (section 5.3) and torch's casts."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch

from gemmill.vocab import float_type
from gemmill.vocab.float_type import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16, F32, UE4M3, UE8M0, FloatType, Specials
from gemmill.vocab.format import (
    BLOCK_SCALED,
    FORMATS,
    FP8_GROUP64,
    FP8_GROUP128,
    MXFP4,
    MXFP6,
    MXFP6_E2M3,
    MXFP8,
    MXFP8_E5M2,
    NVFP4,
    Format,
    ScaleRounding,
    format_named,
)

TYPES = [value for value in vars(float_type).values() if isinstance(value, FloatType)]


@pytest.mark.parametrize(
    ("kind", "bias", "emax", "maximum", "least_normal", "largest_subnormal", "smallest"),
    [
        (E2M1, 1, 2, 6.0, 1.0, 0.5, 0.5),
        (E2M3, 1, 2, 7.5, 1.0, 0.875, 0.125),
        (E3M2, 3, 4, 28.0, 0.25, 0.1875, 0.0625),
        (E4M3, 7, 8, 448.0, 2.0**-6, 0.875 * 2.0**-6, 2.0**-9),
        (E5M2, 15, 15, 57344.0, 2.0**-14, 0.75 * 2.0**-14, 2.0**-16),
    ],
    ids=str,
)
def test_element_types_of_the_specification(
    kind: FloatType,
    bias: int,
    emax: int,
    maximum: float,
    least_normal: float,
    largest_subnormal: float,
    smallest: float,
) -> None:
    assert (kind.bias, kind.greatest_exponent, kind.maximum, kind.smallest) == (bias, emax, maximum, smallest)
    assert 2.0**kind.least_exponent == least_normal
    assert kind.value((1 << kind.mantissa_bits) - 1) == largest_subnormal


def test_scale_type_of_the_specification() -> None:
    assert (UE8M0.bias, UE8M0.smallest, UE8M0.maximum, UE8M0.nan_code) == (127, 2.0**-127, 2.0**127, 255)
    assert [UE8M0.value(code) for code in range(255)] == [2.0 ** (code - 127) for code in range(255)]
    assert math.isnan(UE8M0.value(255))


def test_all_sixteen_e2m1_codes() -> None:
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert [str(value) for value in E2M1.values] == [str(value) for value in positive + [-value for value in positive]]


@pytest.mark.parametrize("kind", [E2M3, E3M2], ids=str)
def test_all_64_six_bit_codes(kind: FloatType) -> None:
    for code, value in enumerate(kind.values):
        exponent, mantissa = (
            code >> kind.mantissa_bits & ((1 << kind.exponent_bits) - 1),
            code & ((1 << kind.mantissa_bits) - 1),
        )
        fraction = Fraction(mantissa, 1 << kind.mantissa_bits) + (exponent > 0)
        wanted = fraction * Fraction(2) ** (max(exponent, 1) - kind.bias)
        assert Fraction(value) == (-wanted if code >= 32 else wanted)
        assert (math.copysign(1.0, value) < 0) == (code >= 32)


@pytest.mark.parametrize(
    ("kind", "dtype", "integer"),
    [
        (E4M3, torch.float8_e4m3fn, torch.uint8),
        (E5M2, torch.float8_e5m2, torch.uint8),
        (UE8M0, torch.float8_e8m0fnu, torch.uint8),
        (F16, torch.float16, torch.int16),
        (BF16, torch.bfloat16, torch.int16),
    ],
    ids=str,
)
def test_every_code_is_torchs(kind: FloatType, dtype: torch.dtype, integer: torch.dtype) -> None:
    codes = torch.arange(1 << kind.bits).to(integer)
    wanted = codes.view(dtype).double()
    values = torch.tensor(kind.values, dtype=torch.float64)
    assert ((values == wanted) | (values.isnan() & wanted.isnan())).all()
    numbers = values.isfinite()
    assert (values.signbit() == wanted.signbit())[numbers].all()


def test_ue4m3_is_e4m3_without_a_sign() -> None:
    assert UE4M3.values[:127] == E4M3.values[:127]
    assert all(math.isnan(value) for value in UE4M3.values[127:])


def test_f32_limits() -> None:
    info = torch.finfo(torch.float32)
    assert (F32.maximum, 2.0**F32.least_exponent, F32.smallest) == (info.max, info.tiny, 2.0**-149)


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind.bits <= 16], ids=str)
def test_a_type_holds_its_values_and_nothing_between_them(kind: FloatType) -> None:
    numbers = sorted({value for value in kind.values if math.isfinite(value)})
    assert all(kind.holds(value) for value in numbers)
    assert not any(kind.holds((low + high) / 2) for low, high in pairwise(numbers))
    assert not kind.holds(kind.maximum * 2) and not kind.holds(kind.smallest / 2)
    assert kind.holds(-1.0) is kind.signed
    assert kind.holds(0.0) is kind.subnormals
    normal = [value for value in numbers if kind.holds(value, normal=True)]
    assert min(abs(value) for value in normal if value) == 2.0**kind.least_exponent


def test_types_that_contradict_themselves() -> None:
    with pytest.raises(ValueError, match=r"^odd has 4 bits, but its fields take 6$"):
        FloatType(name="odd", bits=4, exponent_bits=3, mantissa_bits=2)
    with pytest.raises(ValueError, match=r"^e2m1 has codes 0 to 15, got 16$"):
        E2M1.value(16)
    assert Specials.IEEE is E5M2.specials


@pytest.mark.parametrize(
    ("kind", "code", "group", "scale", "has_global_scale", "bytes_per_value"),
    [
        (NVFP4, E2M1, 16, UE4M3, True, 0.5625),
        (MXFP4, E2M1, 32, UE8M0, False, 0.53125),
        (MXFP6, E3M2, 32, UE8M0, False, 0.78125),
        (MXFP6_E2M3, E2M3, 32, UE8M0, False, 0.78125),
        (MXFP8, E4M3, 32, UE8M0, False, 1.03125),
        (MXFP8_E5M2, E5M2, 32, UE8M0, False, 1.03125),
        (FP8_GROUP64, E4M3, 64, F32, False, 1.0625),
        (FP8_GROUP128, E4M3, 128, F32, False, 1.03125),
    ],
    ids=str,
)
def test_formats(
    kind: Format, code: FloatType, group: int, scale: FloatType, has_global_scale: bool, bytes_per_value: float
) -> None:
    assert (kind.code, kind.group, kind.scale, kind.has_global_scale) == (code, group, scale, has_global_scale)
    assert float(kind.bytes_per_value) == bytes_per_value


@pytest.mark.parametrize("kind", FORMATS, ids=str)
def test_sizes_of_rows(kind: Format) -> None:
    for groups in (0, 1, 3, 7):
        k = groups * kind.group
        assert kind.scale_count(k) == groups
        assert kind.code_bytes(k) * 8 == k * kind.code.bits
        assert kind.k_of(kind.code_bytes(k)) == k


def test_six_bits_are_not_rounded_to_bytes() -> None:
    assert MXFP6.code_bytes(32) == 24
    assert MXFP6.k_of(48) == 64


def test_names() -> None:
    assert [format_named(kind.name) for kind in FORMATS] == list(FORMATS)
    assert set(BLOCK_SCALED) < set(FORMATS) and len({kind.name for kind in FORMATS}) == len(FORMATS)
    assert list(ScaleRounding) == ["up", "ocp"]
    with pytest.raises(
        ValueError,
        match=r"^there is no format 'fp4': the formats are nvfp4, mxfp4, mxfp6, mxfp6_e2m3, mxfp8, mxfp8_e5m2, "
        r"fp8_group64, fp8_group128$",
    ):
        format_named("fp4")


def test_sizes_that_are_no_whole_groups() -> None:
    with pytest.raises(
        ValueError, match=r"^mxfp4 takes K in multiples of its group of 32, got K = 48: pad K with zeros to 64$"
    ):
        MXFP4.code_bytes(48)
    with pytest.raises(
        ValueError,
        match=r"^mxfp6 packs a group of 32 codes into 24 bytes, got rows of 36 bytes: no whole number of groups$",
    ):
        MXFP6.k_of(36)
    with pytest.raises(ValueError, match=r"^odd has groups of 6 codes of 6 bits: no whole bytes$"):
        Format(name="odd", code=E3M2, group=6, scale=UE8M0)
