"""D[m, h] = activation(gate) up on Hopper, gate and up being columns of one product, in one kernel.

Read in the order in which the machine works. First come `facts.py`, and here the call. Then follow the kernel, the
producer and the main loop of all GEMMs (gemmill.gemm), and `scales.py` where scales are in groups. Last are
`consumer.py`, `values.py` and `ending.py`.
"""

# mypy: ignore-errors
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from gemmill.families.gated_mm.config import GatedConfig
from gemmill.families.gated_mm.dsl import consumer
from gemmill.families.gated_mm.dsl.ending import Ending, layout_of, storage_of
from gemmill.families.gated_mm.dsl.plan import Plan
from gemmill.families.gated_mm.dsl.scales import load_scales
from gemmill.gemm import epilogue, producer
from gemmill.gemm.dense_mm import DenseMm
from gemmill.gemm.elements import ELEMENT_OF
from gemmill.gemm.walk import Tiles, walk_over


class GatedMm(DenseMm):
    """One kernel, and the function that launches it. Raises ValueError for a config that it cannot be made of."""

    def __init__(self, config: GatedConfig) -> None:
        super().__init__(Plan(config), ELEMENT_OF[config.out_dtype])

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
        lda: Int64,
        ldb: Int64,
        ldd: Int64,
        out_scale_stride_m: Int64,
        out_scale_stride_g: Int64,
        a_scale_stride_m: Int64,
        a_scale_stride_k: Int64,
        b_scale_stride_n: Int64,
        b_scale_stride_k: Int64,
        m: Int32,
        n: Int32,
        k: Int32,
        a_scale_per_row: Int32,
        b_scale_per_column: Int32,
        alpha: Float32,
        limit: Float32,
        beta: Float32,
        sm_count: Int32,
        programmatic_launch: Int32,
        constant_weights: Int32,
        stream: cuda.CUstream,
    ) -> Int32:
        """Enqueues one product with its ending. Pointers, strides and flags are those of `gemmill_gated_mm_args`."""
        plan = self.plan
        tensor_a, tensor_b = self.operand(a, (m, k), lda), self.operand(b, (n, k), ldb)
        ldd = cute.assume(ldd, divby=16 // plan.result_bytes)
        tensor_d = cute.make_tensor(d, cute.make_layout((m, n // 2), stride=(ldd, 1)))
        layouts = self.layouts(layout_of(plan, self.out_type))
        loads = self.loads(tensor_a, tensor_b, layouts)
        store = self.store(tensor_d, layouts.d, (plan.store_rows, plan.store_columns))
        tiles_x, tiles_y = self.tiles_along(m, n)
        clusters = self.clusters(tiles_x, tiles_y, sm_count)
        null = cute.make_ptr(Int32, 0, cute.AddressSpace.gmem, assumed_align=4)
        scales = None
        if cutlass.const_expr(plan.grouped):
            scales = producer.GroupScales(
                a_scales, b_scales, a_scale_stride_m, a_scale_stride_k, b_scale_stride_n, b_scale_stride_k
            )
        ending = Ending(
            static_scale,
            out_scales,
            out_scale_stride_m,
            out_scale_stride_g,
            n // (2 * plan.result_group),
            alpha,
            limit,
            beta,
        )
        self.launch(
            loads,
            store,
            layouts,
            epilogue.Vectors(a_scales, b_scales, null, null, null, m, n, k, a_scale_per_row, b_scale_per_column),
            scales,
            ending,
            Tiles(walk_over(tiles_x, tiles_y, Int32(0), Int32(1)), constant_weights),
            None,
            clusters * plan.cluster_size,
            plan.cluster_size,
            (programmatic_launch, stream),
        )
        return Int32(0)

    def own_storage(self) -> dict:
        """Shared memory of the epilogue's own, by name."""
        return storage_of(self.plan)

    def copy(self, scales, shared, pipeline, tiles, vectors):
        """Copies the scales of each stage."""
        load_scales(self.plan, scales, shared.storage.scales.data_ptr(), pipeline, vectors, tiles)

    def consume(self, shared, pipeline, order, store, tiles, vectors, ending, target):
        """Each group multiplies and ends its part of every tile or, in pingpong, every second tile."""
        consumer.consume(self.plan, shared, pipeline, order, store, tiles, vectors, ending, target)
