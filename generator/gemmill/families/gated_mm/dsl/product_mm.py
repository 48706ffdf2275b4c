"""D[m, n] = A[m, k] B[k, n] on Hopper, B's columns being packed gates and ups with scales in groups: the product that the
second launch activates. The kernel is that of a scaled GEMM, but for the scales, which are those of `scales.py`.
"""

# mypy: ignore-errors
import cutlass
import cutlass.cute as cute
from cutlass import Int32

from gemmill.families.gated_mm.config import GatedProductConfig
from gemmill.families.gated_mm.dsl.plan import ProductPlan
from gemmill.families.gated_mm.dsl.scales import load_scales
from gemmill.gemm import consumer, epilogue, producer
from gemmill.gemm.dense_mm import DenseMm
from gemmill.gemm.elements import ELEMENT_OF
from gemmill.gemm.kernel import Tma, boxes_of_fragments
from gemmill.gemm.limits import SLAB
from gemmill.gemm.pipeline import GroupOrder, Pipeline
from gemmill.gemm.walk import Tiles, WorkTile, walk_over
from gemmill.vocab import DType


class ProductMm(DenseMm):
    """One kernel, and the function that launches it. Raises ValueError for a config that it cannot be made of."""

    header, struct = "gated_mm/abi.h", "gemmill_gated_mm_args"

    def __init__(self, config: GatedProductConfig) -> None:
        super().__init__(ProductPlan(config), ELEMENT_OF[DType.BF16])

    def enqueue(self, x) -> None:
        """Enqueues one product. D is the product: the host gives its address and its rows' distance in place of the results'."""
        plan = self.plan
        tensor_a, tensor_b = self.operand(x.a, (x.m, x.k), x.lda), self.operand(x.b, (x.n, x.k), x.ldb)
        d_shape, d_stride = (x.m, x.n), (cute.assume(x.ldd, divby=8), 1)
        if cutlass.const_expr(plan.swap_ab):
            d_shape, d_stride = d_shape[::-1], d_stride[::-1]
        tensor_d = cute.make_tensor(x.d, cute.make_layout(d_shape, stride=d_stride))
        layouts = self.layouts(boxes_of_fragments(plan, self.out_type))
        loads = self.loads(tensor_a, tensor_b, layouts)
        store = self.store(tensor_d, layouts.d, (SLAB, plan.store_columns))
        tiles_x, tiles_y = self.tiles_along(x.m, x.n)
        self.launch(
            loads,
            store,
            layouts,
            epilogue.vectors_of_call(x, x.m),
            producer.group_scales_of(x),
            None,
            Tiles(walk_over(tiles_x, tiles_y, Int32(0), Int32(1)), x.constant_weights),
            None,
            self.clusters(tiles_x, tiles_y, x.sm_count) * plan.cluster_size,
            plan.cluster_size,
            (x.programmatic_launch, x.stream),
        )

    def copy(self, scales, shared, pipeline, tiles, vectors):
        """Copies the scales of each stage."""
        load_scales(self.plan, scales, shared.storage.scales.data_ptr(), pipeline, vectors, tiles)

    @cute.jit
    def consume(
        self,
        shared: cutlass.Constexpr,
        pipeline: Pipeline,
        order: GroupOrder,
        store: Tma,
        tiles: Tiles,
        vectors,
        ending,
        target,
    ):
        """Each group multiplies and stores its part of every tile."""
        plan = self.plan
        place = _, thread = consumer.place_of()
        loop = consumer.make_loop(plan, shared, pipeline, place)
        to = consumer.boxes(plan, shared, store, place, vectors.scalars)
        cute.arch.griddepcontrol_wait()

        def end(work: WorkTile, held: tuple, phase: Int32):
            epilogue.store(plan, loop.sums, held, to, place, (work.x0, work.y0))

        consumer.consume(plan, loop, order, tiles, vectors, to, place, end)
        if thread < 32:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
