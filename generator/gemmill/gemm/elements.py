"""The DSL's types of the elements that a plan names."""

import cutlass

from gemmill.vocab import DType

ELEMENT_OF = {
    DType.E4M3: cutlass.Float8E4M3FN,
    DType.E5M2: cutlass.Float8E5M2,
    DType.S8: cutlass.Int8,
    DType.BF16: cutlass.BFloat16,
    DType.F16: cutlass.Float16,
    DType.F32: cutlass.Float32,
    DType.S32: cutlass.Int32,
}
