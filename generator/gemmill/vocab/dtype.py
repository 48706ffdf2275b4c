"""Element types."""

from enum import StrEnum


class DType(StrEnum):
    """An element type, named as in PTX."""

    E4M3 = "e4m3"
    E5M2 = "e5m2"
    E3M2 = "e3m2"
    E2M1 = "e2m1"
    S8 = "s8"
    U8 = "u8"
    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"
    S32 = "s32"
    S64 = "s64"

    @property
    def bits(self) -> int:
        """Size of one element."""
        return _TYPES[self][0]

    @property
    def torch_name(self) -> str:
        """Attribute of the torch module, for example `float8_e4m3fn`; uint8 where a byte has parts of several elements."""
        return _TYPES[self][1]

    @property
    def cutlass_type(self) -> str:
        """C++ type in CUTLASS."""
        return _TYPES[self][2]

    @property
    def is_float(self) -> bool:
        """Whether values are floating point."""
        return self not in (DType.S8, DType.U8, DType.S32, DType.S64)


_TYPES = {
    DType.E4M3: (8, "float8_e4m3fn", "cutlass::float_e4m3_t"),
    DType.E5M2: (8, "float8_e5m2", "cutlass::float_e5m2_t"),
    DType.E3M2: (6, "uint8", "cutlass::float_e3m2_t"),
    DType.E2M1: (4, "uint8", "cutlass::float_e2m1_t"),
    DType.S8: (8, "int8", "int8_t"),
    DType.U8: (8, "uint8", "uint8_t"),
    DType.BF16: (16, "bfloat16", "cutlass::bfloat16_t"),
    DType.F16: (16, "float16", "cutlass::half_t"),
    DType.F32: (32, "float32", "float"),
    DType.S32: (32, "int32", "int32_t"),
    DType.S64: (64, "int64", "int64_t"),
}
"""Bits, and names in torch and CUTLASS."""
