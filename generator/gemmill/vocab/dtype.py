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
        return _BITS[self]

    @property
    def torch_name(self) -> str:
        """Attribute of the torch module, for example `float8_e4m3fn`."""
        return _TORCH[self]

    @property
    def cutlass_type(self) -> str:
        """C++ type in CUTLASS."""
        return _CUTLASS[self]

    @property
    def is_float(self) -> bool:
        """Whether values are floating point."""
        return self not in (DType.S8, DType.S32)


_BITS = {
    DType.E4M3: 8,
    DType.E5M2: 8,
    DType.S8: 8,
    DType.BF16: 16,
    DType.F16: 16,
    DType.F32: 32,
    DType.S32: 32,
}
_TORCH = {
    DType.E4M3: "float8_e4m3fn",
    DType.E5M2: "float8_e5m2",
    DType.S8: "int8",
    DType.BF16: "bfloat16",
    DType.F16: "float16",
    DType.F32: "float32",
    DType.S32: "int32",
}
_CUTLASS = {
    DType.E4M3: "cutlass::float_e4m3_t",
    DType.E5M2: "cutlass::float_e5m2_t",
    DType.S8: "int8_t",
    DType.BF16: "cutlass::bfloat16_t",
    DType.F16: "cutlass::half_t",
    DType.F32: "float",
    DType.S32: "int32_t",
}
