"""Floating-point types by their bits: the value of each code, and which numbers a type holds."""

import math
from dataclasses import dataclass
from enum import StrEnum


class Specials(StrEnum):
    """Which of the highest codes are no numbers."""

    NONE = "none"
    """every code is finite"""
    NAN = "nan"
    """the last code is NaN, and there is no infinity"""
    IEEE = "ieee"
    """the highest exponent is infinity and NaN"""


@dataclass(frozen=True, kw_only=True)
class FloatType:
    """A floating-point type. A code is sign, exponent and mantissa, the sign in the highest bit."""

    name: str
    """The word for it, as in PTX."""
    bits: int
    """Size of a stored code; the highest bit of ue4m3 is always zero."""
    exponent_bits: int
    mantissa_bits: int
    signed: bool = True
    specials: Specials = Specials.NONE
    subnormals: bool = True
    """Whether exponent code 0 has no implicit one, so that there is a zero; ue8m0 has none."""

    def __post_init__(self) -> None:
        fields = self.signed + self.exponent_bits + self.mantissa_bits
        if self.bits < fields:
            raise ValueError(f"{self.name} has {self.bits} bits, but its fields take {fields}")

    def __str__(self) -> str:
        return self.name

    @property
    def bias(self) -> int:
        """The number to subtract from an exponent code."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def least_exponent(self) -> int:
        """Exponent of the smallest normal number, a power of two."""
        return (1 if self.subnormals else 0) - self.bias

    @property
    def last_code(self) -> int:
        """The code of the largest number."""
        reserved = {Specials.NONE: 0, Specials.NAN: 1, Specials.IEEE: 1 << self.mantissa_bits}
        return (1 << (self.exponent_bits + self.mantissa_bits)) - 1 - reserved[self.specials]

    @property
    def nan_code(self) -> int | None:
        """The positive NaN with all bits set; None where every code is finite."""
        return None if self.specials is Specials.NONE else (1 << (self.exponent_bits + self.mantissa_bits)) - 1

    @property
    def maximum(self) -> float:
        """The largest number."""
        return self.value(self.last_code)

    @property
    def greatest_exponent(self) -> int:
        """Exponent of the largest number: emax of the OCP MX specification."""
        return math.frexp(self.maximum)[1] - 1

    @property
    def smallest(self) -> float:
        """The smallest number above zero."""
        return self.value(1 if self.subnormals else 0)

    @property
    def values(self) -> tuple[float, ...]:
        """The value of every code of `bits` bits, in order; NaN for codes without a value."""
        return tuple(self.value(code) for code in range(1 << self.bits))

    def value(self, code: int) -> float:
        """The exact value of a code. Raises ValueError for one of more bits than the type has."""
        if not 0 <= code < 1 << self.bits:
            raise ValueError(f"{self.name} has codes 0 to {(1 << self.bits) - 1}, got {code}")
        size = self.exponent_bits + self.mantissa_bits
        magnitude_code, above = code & ((1 << size) - 1), code >> size
        if above > self.signed:
            return math.nan
        sign = -1.0 if above else 1.0
        if magnitude_code > self.last_code:
            is_infinity = self.specials is Specials.IEEE and magnitude_code == self.last_code + 1
            return sign * math.inf if is_infinity else math.nan
        exponent, mantissa = magnitude_code >> self.mantissa_bits, magnitude_code & ((1 << self.mantissa_bits) - 1)
        if exponent == 0 and self.subnormals:
            return sign * math.ldexp(mantissa, self.least_exponent - self.mantissa_bits)
        return sign * math.ldexp((1 << self.mantissa_bits) + mantissa, exponent - self.bias - self.mantissa_bits)

    def holds(self, number: float, *, normal: bool = False) -> bool:
        """Whether a finite number is one of the type's; with `normal`, whether as zero or a normal number."""
        if number == 0:
            return self.subnormals
        if abs(number) > self.maximum or (number < 0 and not self.signed):
            return False
        exponent = math.frexp(number)[1] - 1
        if exponent < self.least_exponent and (normal or not self.subnormals):
            return False
        step = max(exponent, self.least_exponent) - self.mantissa_bits
        return math.ldexp(number, -step).is_integer()


E2M1 = FloatType(name="e2m1", bits=4, exponent_bits=2, mantissa_bits=1)
E2M3 = FloatType(name="e2m3", bits=6, exponent_bits=2, mantissa_bits=3)
E3M2 = FloatType(name="e3m2", bits=6, exponent_bits=3, mantissa_bits=2)
E4M3 = FloatType(name="e4m3", bits=8, exponent_bits=4, mantissa_bits=3, specials=Specials.NAN)
E5M2 = FloatType(name="e5m2", bits=8, exponent_bits=5, mantissa_bits=2, specials=Specials.IEEE)
UE4M3 = FloatType(name="ue4m3", bits=8, exponent_bits=4, mantissa_bits=3, signed=False, specials=Specials.NAN)
UE8M0 = FloatType(
    name="ue8m0", bits=8, exponent_bits=8, mantissa_bits=0, signed=False, specials=Specials.NAN, subnormals=False
)
F16 = FloatType(name="f16", bits=16, exponent_bits=5, mantissa_bits=10, specials=Specials.IEEE)
BF16 = FloatType(name="bf16", bits=16, exponent_bits=8, mantissa_bits=7, specials=Specials.IEEE)
F32 = FloatType(name="f32", bits=32, exponent_bits=8, mantissa_bits=23, specials=Specials.IEEE)
