"""D[m, n] = epilogue(A[m, k] B[e, n, k]) on Hopper, e being the expert of row m: one launch for all experts.

Read in the order in which the machine works. First come `plan.py`, and here the call. Then follows what kernels of experts
share (`expert_mm.py` of gemmill.gemm, and what it names). Last is `rows.py`.
"""

# mypy: ignore-errors
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from gemmill.families.grouped_mm.config import GroupedConfig
from gemmill.families.grouped_mm.dsl import rows
from gemmill.families.grouped_mm.dsl.plan import Plan
from gemmill.families.grouped_mm.dsl.rows import Kept
from gemmill.families.grouped_mm.dsl.vectors import BiasedVectors
from gemmill.gemm import consumer, epilogue, gather
from gemmill.gemm import expert_producer as producer
from gemmill.gemm.elements import ELEMENT_OF
from gemmill.gemm.expert_mm import ExpertMm, Operands, Target
from gemmill.gemm.experts import Experts, ExpertTiles, ExpertWorkTile, Vectors
from gemmill.gemm.kernel import Tma, boxes_of_fragments
from gemmill.gemm.limits import SLAB
from gemmill.gemm.pipeline import GroupOrder, Pipeline


class GroupedMm(ExpertMm):
    """One kernel, and the function that launches it. Raises ValueError for a config that it cannot be made of."""

    def __init__(self, config: GroupedConfig) -> None:
        super().__init__(Plan(config), ELEMENT_OF[config.out_dtype])

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
        if cutlass.const_expr(not self.plan.biased):
            bias = cute.recast_ptr(null, dtype=self.out_type)
        of_call = epilogue.Vectors(
            a_scales, b_scales, bias, null, null, tokens, n, k, a_scale_per_row, b_scale_per_column
        )
        vectors = Vectors(of_call, b_scale_stride_expert)
        if cutlass.const_expr(self.plan.biased):
            vectors = BiasedVectors(of_call, b_scale_stride_expert, alpha)
        ldd = cute.assume(ldd, divby=8)
        self.enqueue(
            Operands(a, b, d, lda, ldb, ldd, b_stride_expert, m, n, k, tokens, weights),
            vectors,
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

    def stored(self, x: Operands) -> tuple:
        """D as a tensor, the layout of its boxes in shared memory, and a box's shape."""
        plan = self.plan
        d_shape, d_stride = ((x.n, x.m), (1, x.ldd)) if plan.swap_ab else ((x.m, x.n), (x.ldd, 1))
        tensor = cute.make_tensor(x.d, cute.make_layout(d_shape, stride=d_stride))
        return tensor, boxes_of_fragments(plan, self.out_type), (SLAB, plan.store_columns)

    @cute.jit
    def consume(
        self,
        shared: cutlass.Constexpr,
        pipeline: Pipeline,
        order: GroupOrder,
        store: Tma,
        tiles: ExpertTiles,
        vectors,
        ending,
        target: Target,
    ):
        """Each group multiplies and stores its part of every tile or, in pingpong, every second tile."""
        plan, place = self.plan, consumer.place_of()
        loop = consumer.make_loop(plan, shared, pipeline, place)
        to = consumer.boxes(plan, shared, store, place)

        def end(work: ExpertWorkTile, held: tuple, phase: Int32):
            kept = Kept(target.d, target.ldd, vectors.n, work.begin, work.end)
            rows.store(plan, loop.sums, held, to, place, (work.x0, work.y0), kept)

        consumer.consume(plan, loop, order, tiles, vectors, to, place, end)
        if place[1] < 32:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
