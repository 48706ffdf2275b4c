"""D[m, n] = epilogue(A[m, k] B[e, n, k]) with an alpha of expert e, and with a bias of its columns.

The kernel is that of `grouped_mm.py`. What differs is what its epilogue reads.
"""

# mypy: ignore-errors
from dataclasses import dataclass, fields

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from gemmill.families.moe.dsl.grouped_mm import GroupedMm
from gemmill.gemm import epilogue, experts, gather
from gemmill.gemm import expert_producer as producer
from gemmill.gemm.expert_mm import Operands
from gemmill.gemm.experts import Experts


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
class Vectors(experts.Vectors):
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


class BiasedMm(GroupedMm):
    """One kernel, and the function that launches it. Raises ValueError for a config that it cannot be made of."""

    @cute.jit
    def __call__(
        self,
        a: cute.Pointer,
        b: cute.Pointer,
        d: cute.Pointer,
        a_scales: cute.Pointer,
        b_scales: cute.Pointer,
        offsets: cute.Pointer,
        expert_map: cute.Pointer,
        token_ids: cute.Pointer,
        lda: Int64,
        ldb: Int64,
        ldd: Int64,
        b_stride_expert: Int64,
        m: Int32,
        n: Int32,
        k: Int32,
        tokens: Int32,
        experts: Int32,
        weights: Int32,
        slot: Int32,
        offset_words: Int32,
        id_words: Int32,
        a_scale_per_row: Int32,
        b_scale_per_column: Int32,
        sm_count: Int32,
        programmatic_launch: Int32,
        a_scale_stride_m: Int64,
        a_scale_stride_k: Int64,
        b_scale_stride_n: Int64,
        b_scale_stride_k: Int64,
        b_scale_stride_expert: Int64,
        alpha: cute.Pointer,
        bias: cute.Pointer,
        stream: cuda.CUstream,
    ) -> Int32:
        """Enqueues one grouped GEMM. Pointers, strides and flags are those of `gemmill_grouped_mm_args`."""
        null = cute.make_ptr(Int32, 0, cute.AddressSpace.gmem, assumed_align=4)
        lda, ldb, b_stride_expert = self.aligned(lda, ldb, b_stride_expert)
        ldd = cute.assume(ldd, divby=8)
        self.enqueue(
            Operands(a, b, d, lda, ldb, ldd, b_stride_expert, m, n, k, tokens, weights),
            Vectors(
                epilogue.Vectors(
                    a_scales, b_scales, bias, null, null, tokens, n, k, a_scale_per_row, b_scale_per_column
                ),
                b_scale_stride_expert,
                alpha,
            ),
            producer.GroupScales(
                a_scales,
                b_scales,
                a_scale_stride_m,
                a_scale_stride_k,
                b_scale_stride_n,
                b_scale_stride_k,
                b_scale_stride_expert,
            ),
            None,
            Experts(offsets, offset_words, expert_map, experts, weights, slot, m),
            gather.Tokens(token_ids, id_words, m, tokens, a, lda),
            (sm_count, programmatic_launch, stream),
        )
        return Int32(0)
