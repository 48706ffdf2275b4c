"""D[m, h] = activation(gate) up on Hopper, of rows that belong to experts: one launch for all of them.

Read in the order in which the machine works. First come `facts.py`, and here the call. Then follows what kernels of experts
share (`expert_mm.py` of gemmill.gemm, and what it names). Last are `consumer.py`, `values.py` and `ending.py`.
"""

# mypy: ignore-errors
from functools import partial

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from gemmill.families.gated_mm.config import GatedConfig
from gemmill.families.gated_mm.dsl import consumer
from gemmill.families.gated_mm.dsl.ending import Ending, layout_of, storage_of
from gemmill.families.gated_mm.dsl.plan import Plan
from gemmill.families.gated_mm.dsl.scales import scale_of
from gemmill.gemm import epilogue, gather
from gemmill.gemm import expert_producer as producer
from gemmill.gemm.elements import ELEMENT_OF
from gemmill.gemm.expert_mm import ExpertMm, Operands
from gemmill.gemm.experts import Experts, Vectors


class ExpertGatedMm(ExpertMm):
    """One kernel, and the function that launches it. Raises ValueError for a config that it cannot be made of."""

    def __init__(self, config: GatedConfig) -> None:
        super().__init__(Plan(config), ELEMENT_OF[config.out_dtype])
        if self.plan.swap_ab:
            self.of_column = partial(scale_of, self.plan)

    @cute.jit
    def __call__(
        self,
        a: cute.Pointer,
        b: cute.Pointer,
        d: cute.Pointer,
        a_scales: cute.Pointer,
        b_scales: cute.Pointer,
        static_scale: cute.Pointer,
        out_scales: cute.Pointer,
        offsets: cute.Pointer,
        expert_map: cute.Pointer,
        token_ids: cute.Pointer,
        lda: Int64,
        ldb: Int64,
        ldd: Int64,
        b_stride_expert: Int64,
        out_scale_stride_m: Int64,
        out_scale_stride_g: Int64,
        a_scale_stride_m: Int64,
        a_scale_stride_k: Int64,
        b_scale_stride_n: Int64,
        b_scale_stride_k: Int64,
        b_scale_stride_expert: Int64,
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
        alpha: Float32,
        limit: Float32,
        beta: Float32,
        sm_count: Int32,
        programmatic_launch: Int32,
        stream: cuda.CUstream,
    ) -> Int32:
        """Enqueues one grouped product with its ending. Pointers, strides and flags are those of
        `gemmill_gated_mm_args`."""
        null = cute.make_ptr(Int32, 0, cute.AddressSpace.gmem, assumed_align=4)
        ldd = cute.assume(ldd, divby=16 // self.plan.result_bytes)
        self.enqueue(
            Operands(a, b, d, lda, ldb, ldd, b_stride_expert, m, n, k, tokens, weights),
            Vectors(
                epilogue.Vectors(
                    a_scales, b_scales, null, null, null, tokens, n, k, a_scale_per_row, b_scale_per_column
                ),
                b_scale_stride_expert,
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
            Ending(
                static_scale,
                out_scales,
                out_scale_stride_m,
                out_scale_stride_g,
                n // (2 * self.plan.result_group),
                alpha,
                limit,
                beta,
            ),
            Experts(offsets, offset_words, expert_map, experts, weights, slot, m),
            gather.Tokens(token_ids, id_words, m, tokens, a, lda),
            (sm_count, programmatic_launch, stream),
        )
        return Int32(0)

    def stored(self, x: Operands) -> tuple:
        """D as a tensor, the layout of its boxes in shared memory, and a box's shape."""
        plan = self.plan
        tensor = cute.make_tensor(x.d, cute.make_layout((x.m, x.n // 2), stride=(x.ldd, 1)))
        return tensor, layout_of(plan, self.out_type), (plan.store_rows, plan.store_columns)

    def own_storage(self) -> dict:
        """Shared memory of the epilogue's own, by name."""
        return storage_of(self.plan)

    def consume(self, shared, pipeline, order, store, tiles, vectors, ending, target):
        """Each group multiplies and ends its part of every tile or, in pingpong, every second tile."""
        consumer.consume(self.plan, shared, pipeline, order, store, tiles, vectors, ending, target)
