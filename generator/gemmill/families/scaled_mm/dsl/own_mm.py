"""The scaled GEMM that ends in a user's epilogue, which reads the vectors and numbers that it named."""

# mypy: ignore-errors
from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from gemmill.families.scaled_mm.dsl.scaled_mm import ScaledMm
from gemmill.gemm import producer
from gemmill.gemm.epilogue import element
from gemmill.gemm.packed import Packed


@dataclass
class OwnVectors(Packed):
    """The operands of a user's epilogue: the address of each vector, the stride to its next value, and the numbers."""

    vectors: tuple
    steps: tuple
    scalars: tuple
    m: Int32
    n: Int32
    k: Int32

    def read(self, plan, given, at: Int32):
        """An input's value of one row or column, as it is stored."""
        place = (plan.m_fields + plan.n_fields).index(given)
        vector, at = self.vectors[place], at * self.steps[place]
        return element(vector, at) if given.absent is None else value_or(given.absent, vector, at)


@cute.jit
def value_or(absent: cutlass.Constexpr, vector: cute.Pointer, at: Int32):
    """One value of a vector, or `absent` where the call gives none."""
    value = vector.dtype(absent)
    if vector.toint() != 0:
        value = element(vector, at)
    return value


class OwnMm(ScaledMm):
    """One kernel, and the function that launches it."""

    @cute.jit
    def __call__(
        self,
        a: cute.Pointer,
        b: cute.Pointer,
        d: cute.Pointer,
        row0: cute.Pointer,
        row1: cute.Pointer,
        row2: cute.Pointer,
        row3: cute.Pointer,
        column0: cute.Pointer,
        column1: cute.Pointer,
        column2: cute.Pointer,
        column3: cute.Pointer,
        lda: Int64,
        ldb: Int64,
        ldd: Int64,
        m: Int32,
        n: Int32,
        k: Int32,
        row0_step: Int32,
        row1_step: Int32,
        row2_step: Int32,
        row3_step: Int32,
        column0_step: Int32,
        column1_step: Int32,
        column2_step: Int32,
        column3_step: Int32,
        scalar0: Float32,
        scalar1: Float32,
        scalar2: Float32,
        scalar3: Float32,
        raster_order: Int32,
        swizzle: Int32,
        splits: Int32,
        sm_count: Int32,
        programmatic_launch: Int32,
        constant_weights: Int32,
        stream: cuda.CUstream,
    ) -> Int32:
        """Enqueues one GEMM. Arguments are those of `gemmill_scaled_mm_args`."""
        plan = self.plan
        rows, columns, scalars = len(plan.m_fields), len(plan.n_fields), len(plan.scalar_fields)
        vectors = OwnVectors(
            (row0, row1, row2, row3)[:rows] + (column0, column1, column2, column3)[:columns],
            (row0_step, row1_step, row2_step, row3_step)[:rows]
            + (column0_step, column1_step, column2_step, column3_step)[:columns],
            (scalar0, scalar1, scalar2, scalar3)[:scalars],
            m,
            n,
            k,
        )
        null = cute.make_ptr(Float32, 0, cute.AddressSpace.gmem, assumed_align=4)
        scales = producer.GroupScales(null, null, Int64(0), Int64(0), Int64(0), Int64(0))
        settings = (raster_order, swizzle, splits, sm_count, programmatic_launch, constant_weights)
        self.enqueue((a, b, d, null, Int64(0)), (lda, ldb, ldd), vectors, scales, settings, stream)
        return Int32(0)
