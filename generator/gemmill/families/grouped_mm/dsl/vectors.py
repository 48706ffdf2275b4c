"""What the epilogue of a kernel with alpha and bias reads of an expert."""

# mypy: ignore-errors
from dataclasses import dataclass, fields

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from gemmill.gemm import epilogue, experts


@dataclass
class OfExpert(epilogue.Vectors):
    """What the epilogue reads for one expert."""

    alpha: Float32

    def read(self, plan, given, at: Int32):
        """An input's value of one row or column. Scales of columns have alpha in them."""
        if given.name == "alpha":
            return self.alpha
        value = super().read(plan, given, at)
        return self.alpha * value if given.name == "b_scale" else value


@dataclass
class BiasedVectors(experts.Vectors):
    """What the epilogue reads of the first expert, and how it comes to the next one's."""

    alpha: cute.Pointer
    """One value of each expert's weights; null for 1."""

    @cute.jit
    def of_expert(self, weights: Int32):
        """What the epilogue reads for one expert. Where there is no bias, its pointer stays null."""
        alpha, columns = Float32(1), Int64(0)
        if self.alpha.toint() != 0:
            alpha = epilogue.element(self.alpha, weights)
        if self.call.bias.toint() != 0:
            columns = Int64(weights) * self.call.n
        told = {field.name: getattr(self.call, field.name) for field in fields(self.call)}
        told["b_scales"] = self.call.b_scales + weights * self.b_stride_expert
        told["bias"] = self.call.bias + columns
        return OfExpert(**told, alpha=alpha)
