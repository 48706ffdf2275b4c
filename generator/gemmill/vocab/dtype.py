"""Element types."""

from enum import StrEnum


class DType(StrEnum):
    """An element type, named as in PTX."""

    E4M3 = "e4m3"
    E5M2 = "e5m2"
    S8 = "s8"
    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"
    S32 = "s32"

    @property
    def bits(self) -> int:
        """Size of one element."""
        return _TYPES[self][0]

    @property
    def torch_name(self) -> str:
        """Attribute of the torch module, for example `float8_e4m3fn`."""
        return _TYPES[self][1]

    @property
    def cutlass_type(self) -> str:
        """C++ type in CUTLASS."""
        return _TYPES[self][2]

    @property
    def is_float(self) -> bool:
        """Whether values are floating point."""
        return self not in (DType.S8, DType.S32)


_TYPES = {
    DType.E4M3: (8, "float8_e4m3fn", "cutlass::float_e4m3_t"),
    DType.E5M2: (8, "float8_e5m2", "cutlass::float_e5m2_t"),
    DType.S8: (8, "int8", "int8_t"),
    DType.BF16: (16, "bfloat16", "cutlass::bfloat16_t"),
    DType.F16: (16, "float16", "cutlass::half_t"),
    DType.F32: (32, "float32", "float"),
    DType.S32: (32, "int32", "int32_t"),
}
"""Bits, and names in torch and CUTLASS."""
