"""D[m, n] = epilogue(A[m, k] B[e, n, k]) on Hopper, e being the expert of row m: one launch for all experts.

Read in the order in which the machine works. First come `plan.py`, and here the call. Then follows what kernels of experts
share (`expert_mm.py` of gemmill.gemm, and what it names). Last is `rows.py`.
"""

# mypy: ignore-errors
import cutlass
import cutlass.cute as cute
from cutlass import Int32

from gemmill.families.grouped_mm.config import GroupedConfig
from gemmill.families.grouped_mm.dsl import rows
from gemmill.families.grouped_mm.dsl.plan import Plan
from gemmill.families.grouped_mm.dsl.rows import Kept
from gemmill.families.grouped_mm.dsl.vectors import BiasedVectors
from gemmill.gemm import consumer, epilogue
from gemmill.gemm.elements import ELEMENT_OF
from gemmill.gemm.expert_mm import ExpertMm, Target
from gemmill.gemm.experts import ExpertTiles, ExpertWorkTile, Vectors
from gemmill.gemm.kernel import Tma, boxes_of_fragments
from gemmill.gemm.limits import SLAB
from gemmill.gemm.pipeline import GroupOrder, Pipeline


class GroupedMm(ExpertMm):
    """One kernel, and the function that launches it. Raises ValueError for a config that it cannot be made of."""

    header, struct = "gemm/grouped_args.h", "gemmill_grouped_mm_args"

    def __init__(self, config: GroupedConfig) -> None:
        super().__init__(Plan(config), ELEMENT_OF[config.out_dtype])

    def vectors_of(self, x) -> Vectors:
        """What the epilogue reads of a call, with alpha and bias where the kernel has them."""
        if self.plan.biased:
            return BiasedVectors(epilogue.vectors_of_call(x, x.tokens, bias=x.bias), x.b_scale_stride_expert, x.alpha)
        null = cute.make_ptr(self.out_type, 0, cute.AddressSpace.gmem, assumed_align=4)
        return Vectors(epilogue.vectors_of_call(x, x.tokens, bias=null), x.b_scale_stride_expert)

    def stored(self, x) -> tuple:
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
