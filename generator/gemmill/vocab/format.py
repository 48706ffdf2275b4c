"""Quantised formats: codes of a few bits that share a scale in groups along K.

nvfp4 is NVIDIA's; mxfp4, mxfp6 and mxfp8 are those of the OCP Microscaling Formats (MX) specification 1.0. Formats of
the same code size arrive in tensors of the same dtype, uint8: an op or an argument distinguishes them, never the
tensor.
"""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from gemmill.vocab.float_type import E2M1, E2M3, E3M2, E4M3, E5M2, F32, UE4M3, UE8M0, FloatType


class ScaleRounding(StrEnum):
    """How a group's absolute maximum becomes a power of two."""

    UP = "up"
    """the smallest power with which no code saturates: 2^ceil(log2(amax / largest code)); LightX2V's and cuBLAS's
    way"""
    OCP = "ocp"
    """the specification's power: 2^(floor(log2 amax) - exponent of the largest code); values above it saturate"""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A quantised format. A value is code * scale of its group, divided by the global scale where there is one."""

    name: str
    """The word for it in ops and files."""
    code: FloatType
    group: int
    """Codes along K that share a scale."""
    scale: FloatType
    has_global_scale: bool = False
    """Whether scales are relative to one more scale, an f32: the whole tensor's, a row's or an expert's."""

    def __post_init__(self) -> None:
        if self.group * self.code.bits % 8:
            raise ValueError(f"{self.name} has groups of {self.group} codes of {self.code.bits} bits: no whole bytes")

    def __str__(self) -> str:
        return self.name

    @property
    def torch_name(self) -> str:
        """Dtype of a tensor of its codes: uint8 where a byte holds more than one, or parts of several."""
        return {E4M3: "float8_e4m3fn", E5M2: "float8_e5m2"}.get(self.code, "uint8")

    @property
    def bytes_per_value(self) -> Fraction:
        """Memory for a value and its part of a scale."""
        return Fraction(self.code.bits, 8) + Fraction(self.scale.bits, 8 * self.group)

    def code_bytes(self, k: int) -> int:
        """Bytes that k codes of a row take. Raises ValueError where k is not a whole number of groups."""
        return self.scale_count(k) * (self.group * self.code.bits // 8)

    def scale_count(self, k: int) -> int:
        """Scales of a row of k codes. Raises ValueError where k is not a whole number of groups."""
        if k % self.group:
            raise ValueError(
                f"{self.name} takes K in multiples of its group of {self.group}, got K = {k}: "
                f"pad K with zeros to {-(-k // self.group) * self.group}"
            )
        return k // self.group

    def k_of(self, code_bytes: int) -> int:
        """Codes in so many bytes of a row. Raises ValueError where they are not a whole number of groups."""
        of_group = self.group * self.code.bits // 8
        if code_bytes % of_group:
            raise ValueError(
                f"{self.name} packs a group of {self.group} codes into {of_group} bytes, got rows of {code_bytes} bytes: "
                f"no whole number of groups"
            )
        return code_bytes // of_group * self.group


NVFP4 = Format(name="nvfp4", code=E2M1, group=16, scale=UE4M3, has_global_scale=True)
MXFP4 = Format(name="mxfp4", code=E2M1, group=32, scale=UE8M0)
MXFP6 = Format(name="mxfp6", code=E3M2, group=32, scale=UE8M0)
MXFP6_E2M3 = Format(name="mxfp6_e2m3", code=E2M3, group=32, scale=UE8M0)
MXFP8 = Format(name="mxfp8", code=E4M3, group=32, scale=UE8M0)
MXFP8_E5M2 = Format(name="mxfp8_e5m2", code=E5M2, group=32, scale=UE8M0)
FP8_GROUP64 = Format(name="fp8_group64", code=E4M3, group=64, scale=F32)
FP8_GROUP128 = Format(name="fp8_group128", code=E4M3, group=128, scale=F32)

BLOCK_SCALED = (NVFP4, MXFP4, MXFP6, MXFP6_E2M3, MXFP8, MXFP8_E5M2)
"""Formats whose scales are single bytes, which block-scaled tensor cores read."""
FORMATS = (*BLOCK_SCALED, FP8_GROUP64, FP8_GROUP128)


def format_named(name: str) -> Format:
    """The format of a name. Raises ValueError with the names that there are."""
    for known in FORMATS:
        if known.name == name:
            return known
    raise ValueError(f"there is no format {name!r}: the formats are {', '.join(known.name for known in FORMATS)}")
