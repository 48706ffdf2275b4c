"""The scaled GEMM that ends in a user's epilogue, which reads the vectors and numbers that it named."""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from gemmill.families.scaled_mm.dsl.scaled_mm import ScaledMm
from gemmill.gemm import producer
from gemmill.gemm.epilogue import element
from gemmill.gemm.packed import Packed
from gemmill.gemm.traced import Stored


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

    def elements(self) -> dict:
        """Also of the vectors, as the epilogue's inputs are stored."""
        type_of = {Stored.F32: (Float32, 4), Stored.S32: (Int32, 4), Stored.OUT: (self.out_type, 2)}
        sides = {"row": self.plan.m_fields, "column": self.plan.n_fields}
        own = {f"{side}{i}": type_of[given.stored] for side, fields in sides.items() for i, given in enumerate(fields)}
        return {**super().elements(), **own}

    def vectors_of(self, x) -> tuple:
        """What the epilogue reads of a call, and no scales in groups. It has no workspace either."""
        plan = self.plan
        names = [f"row{i}" for i in range(len(plan.m_fields))] + [f"column{i}" for i in range(len(plan.n_fields))]
        scalars = [f"scalar{i}" for i in range(len(plan.scalar_fields))]
        vectors = OwnVectors(
            tuple(getattr(x, name) for name in names),
            tuple(getattr(x, f"{name}_step") for name in names),
            tuple(getattr(x, name) for name in scalars),
            x.m,
            x.n,
            x.k,
        )
        null, zero = cute.make_ptr(Float32, 0, cute.AddressSpace.gmem, assumed_align=4), Int64(0)
        x.workspace, x.ticket = null, zero
        return vectors, producer.GroupScales(null, null, zero, zero, zero, zero)
