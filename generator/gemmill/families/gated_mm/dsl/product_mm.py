"""D[m, n] = A[m, k] B[k, n] on Hopper, B's columns being packed gates and ups with scales in groups: the product that the
second launch activates. The kernel is that of a scaled GEMM, but for the scales, which are those of `scales.py`.
"""

# mypy: ignore-errors
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

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

    def __init__(self, config: GatedProductConfig) -> None:
        super().__init__(ProductPlan(config), ELEMENT_OF[DType.BF16])

    @cute.jit
    def __call__(
        self,
        a: cute.Pointer,
        b: cute.Pointer,
        d: cute.Pointer,
        a_scales: cute.Pointer,
        b_scales: cute.Pointer,
        lda: Int64,
        ldb: Int64,
        ldd: Int64,
        a_scale_stride_m: Int64,
        a_scale_stride_k: Int64,
        b_scale_stride_n: Int64,
        b_scale_stride_k: Int64,
        m: Int32,
        n: Int32,
        k: Int32,
        sm_count: Int32,
        programmatic_launch: Int32,
        constant_weights: Int32,
        stream: cuda.CUstream,
    ) -> Int32:
        """Enqueues one product. Pointers, strides and flags are those of `gemmill_gated_mm_args`, but for D's, which are the product's."""
        plan = self.plan
        tensor_a, tensor_b = self.operand(a, (m, k), lda), self.operand(b, (n, k), ldb)
        d_shape, d_stride = (m, n), (cute.assume(ldd, divby=8), 1)
        if cutlass.const_expr(plan.swap_ab):
            d_shape, d_stride = d_shape[::-1], d_stride[::-1]
        layouts = self.layouts(boxes_of_fragments(plan, self.out_type))
        loads = self.loads(tensor_a, tensor_b, layouts)
        tensor_d = cute.make_tensor(d, cute.make_layout(d_shape, stride=d_stride))
        store = self.store(tensor_d, layouts.d, (SLAB, plan.store_columns))
        tiles_x, tiles_y = self.tiles_along(m, n)
        null = cute.make_ptr(Int32, 0, cute.AddressSpace.gmem, assumed_align=4)
        self.launch(
            loads,
            store,
            layouts,
            epilogue.Vectors(a_scales, b_scales, null, null, null, m, n, k, Int32(0), Int32(0)),
            producer.GroupScales(
                a_scales, b_scales, a_scale_stride_m, a_scale_stride_k, b_scale_stride_n, b_scale_stride_k
            ),
            None,
            Tiles(walk_over(tiles_x, tiles_y, Int32(0), Int32(1)), constant_weights),
            None,
            self.clusters(tiles_x, tiles_y, sm_count) * plan.cluster_size,
            plan.cluster_size,
            (programmatic_launch, stream),
        )
        return Int32(0)

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
