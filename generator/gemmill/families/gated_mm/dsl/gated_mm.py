"""D[m, h] = activation(gate) up on Hopper, gate and up being columns of one product, in one kernel.

Read in the order in which the machine works. First come `facts.py`, and here the call, shared memory and barriers. Then
follow the producer and main loop of all GEMMs (gemmill.gemm), and `scales.py` where scales are in groups. Last are
`consumer.py`, `values.py` and `ending.py`.
"""

# mypy: ignore-errors
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup

from gemmill.families.gated_mm.config import GatedConfig
from gemmill.families.gated_mm.dsl import consumer
from gemmill.families.gated_mm.dsl.ending import Ending, layout_of
from gemmill.families.gated_mm.dsl.plan import Plan
from gemmill.families.gated_mm.dsl.scales import load_scales
from gemmill.gemm import epilogue, producer
from gemmill.gemm.elements import ELEMENT_OF
from gemmill.gemm.pipeline import GroupOrder, Pipeline
from gemmill.gemm.walk import Job, Walk, walk_over


class GatedMm:
    """One kernel, and the function that launches it. Raises ValueError for a config that it cannot be made of."""

    def __init__(self, config: GatedConfig) -> None:
        self.plan = Plan(config)
        self.x_type = ELEMENT_OF[self.plan.x_dtype]
        self.y_type = ELEMENT_OF[self.plan.y_dtype]
        self.out_type = ELEMENT_OF[config.out_dtype]

    # The call --------------------------------------------------------------------------------------------------------

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
        lda, ldb = cute.assume(lda, divby=128 // plan.x_dtype.bits), cute.assume(ldb, divby=128 // plan.x_dtype.bits)
        tensor_a = cute.make_tensor(a, cute.make_layout((m, k), stride=(lda, 1)))
        tensor_b = cute.make_tensor(b, cute.make_layout((n, k), stride=(ldb, 1)))
        ldd = cute.assume(ldd, divby=16 // plan.result_bytes)
        tensor_d = cute.make_tensor(d, cute.make_layout((m, n // 2), stride=(ldd, 1)))
        tensor_x, tensor_y, size_x, size_y = tensor_a, tensor_b, m, n
        if cutlass.const_expr(plan.swap_ab):
            tensor_x, tensor_y, size_x, size_y = tensor_b, tensor_a, n, m

        layout_x = self._stage_layout(self.x_type, plan.tile_x)
        layout_y = self._stage_layout(self.y_type, plan.tile_y)
        layout_d = layout_of(plan, self.out_type)
        load_x, coords_x = self._load_atom(tensor_x, layout_x, plan.tile_x, plan.cluster_y)
        load_y, coords_y = self._load_atom(tensor_y, layout_y, plan.tile_y, plan.cluster_x)
        store_d, coords_d = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(),
            tensor_d,
            cute.slice_(layout_d, (None, None, 0)),
            (plan.store_rows, plan.store_columns),
        )

        tiles_x = cute.ceil_div(size_x, plan.tile_x * plan.cluster_x)
        tiles_y = cute.ceil_div(size_y, plan.tile_y * plan.cluster_y)
        clusters = cutlass.min(sm_count * plan.ctas_of_sm // plan.cluster_size, tiles_x * tiles_y)
        null = cute.make_ptr(Int32, 0, cute.AddressSpace.gmem, assumed_align=4)
        scales = None
        if cutlass.const_expr(plan.grouped):
            scales = producer.GroupScales(
                a_scales, b_scales, a_scale_stride_m, a_scale_stride_k, b_scale_stride_n, b_scale_stride_k
            )
        self.kernel(
            load_x,
            coords_x,
            load_y,
            coords_y,
            store_d,
            coords_d,
            layout_x,
            layout_y,
            layout_d,
            epilogue.Vectors(a_scales, b_scales, null, null, null, m, n, k, a_scale_per_row, b_scale_per_column),
            scales,
            Ending(
                static_scale,
                out_scales,
                out_scale_stride_m,
                out_scale_stride_g,
                n // (2 * plan.result_group),
                alpha,
                limit,
                beta,
            ),
            walk_over(tiles_x, tiles_y, Int32(0), Int32(1)),
            constant_weights,
        ).launch(
            grid=(clusters * plan.cluster_size, 1, 1),
            block=(plan.threads, 1, 1),
            cluster=(plan.cluster_size, 1, 1),
            min_blocks_per_mp=plan.ctas_of_sm,
            preferred_smem_carveout=100,  # left open, the DSL would ask a driver
            use_pdl=programmatic_launch,
            stream=stream,
        )
        return Int32(0)

    def _stage_layout(self, element: type, rows: int) -> cute.ComposedLayout:
        """Stages of an operand, as TMA writes and WGMMA reads them without bank conflicts."""
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, element)
        return cute.tile_to_shape(atom, (rows, self.plan.tile_k, self.plan.stages), order=(0, 1, 2))

    def _load_atom(self, tensor: cute.Tensor, layout: cute.ComposedLayout, rows: int, sharers: int):
        """TMA that loads a stage of an operand, in slices when a cluster's CTAs share it."""
        op = cpasync.CopyBulkTensorTileG2SOp() if sharers == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
        return cpasync.make_tiled_tma_atom(
            op, tensor, cute.slice_(layout, (None, None, 0)), (rows, self.plan.tile_k), num_multicast=sharers
        )

    def _shared_storage(
        self, layout_x: cute.ComposedLayout, layout_y: cute.ComposedLayout, layout_d: cute.ComposedLayout
    ):
        plan = self.plan

        @cute.struct
        class SharedStorage:
            full: cute.struct.MemRange[Int64, plan.stages]
            empty: cute.struct.MemRange[Int64, plan.stages]
            turn: cute.struct.MemRange[Int64, 2]
            x: cute.struct.Align[cute.struct.MemRange[self.x_type, cute.cosize(layout_x)], 1024]
            y: cute.struct.Align[cute.struct.MemRange[self.y_type, cute.cosize(layout_y)], 1024]
            d: cute.struct.Align[cute.struct.MemRange[self.out_type, cute.cosize(layout_d)], 1024]
            vectors: cute.struct.MemRange[Float32, max(plan.consumer_groups * plan.vector_words, 4)]
            maxima: cute.struct.MemRange[Float32, max(plan.maximum_words, 4)]
            scales: cute.struct.Align[cute.struct.MemRange[Float32, max(plan.stages * plan.scales, 4)], 16]

        return SharedStorage

    # The kernel ------------------------------------------------------------------------------------------------------

    @cute.kernel
    def kernel(
        self,
        load_x: cute.CopyAtom,
        coords_x: cute.Tensor,
        load_y: cute.CopyAtom,
        coords_y: cute.Tensor,
        store_d: cute.CopyAtom,
        coords_d: cute.Tensor,
        layout_x: cute.ComposedLayout,
        layout_y: cute.ComposedLayout,
        layout_d: cute.ComposedLayout,
        vectors: epilogue.Vectors,
        scales,
        ending: Ending,
        walk: Walk,
        constant_weights: Int32,
    ):
        plan = self.plan
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        first_producer = plan.consumers // 32

        # Shared memory
        storage = cutlass.utils.SmemAllocator().allocate(self._shared_storage(layout_x, layout_y, layout_d))
        shared_x = storage.x.get_tensor(layout_x.outer, swizzle=layout_x.inner)
        shared_y = storage.y.get_tensor(layout_y.outer, swizzle=layout_y.inner)
        shared_d = storage.d.get_tensor(layout_d.outer, swizzle=layout_d.inner)
        pipeline = Pipeline(plan, storage.full.data_ptr(), storage.empty.data_ptr())
        order = GroupOrder(storage.turn.data_ptr())

        # Barriers
        if warp == first_producer:
            cpasync.prefetch_descriptor(load_x)
            cpasync.prefetch_descriptor(load_y)
            cpasync.prefetch_descriptor(store_d)
            with cute.arch.elect_one():
                pipeline.init()
                order.init()
                cute.arch.mbarrier_init_fence()
        if cutlass.const_expr(plan.cluster_size > 1):
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()
        cute.arch.griddepcontrol_launch_dependents()

        # This CTA's job: the first tile of its cluster, how far the next one is, and the K steps of each
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        k_steps = cute.ceil_div(vectors.k, plan.tile_k)
        job = Job(block // plan.cluster_size, blocks // plan.cluster_size, Int32(0), k_steps)

        if warp >= first_producer:
            if cutlass.const_expr(plan.moves_registers):
                cute.arch.setmaxregister_decrease(plan.producer_registers)
            if warp == first_producer:
                producer.load_operands(
                    plan,
                    (load_x, coords_x, shared_x),
                    (load_y, coords_y, shared_y),
                    pipeline,
                    walk,
                    job,
                    constant_weights,
                    vectors.m,
                )
            if cutlass.const_expr(plan.grouped):
                if warp > first_producer and warp <= first_producer + plan.scale_warps:
                    load_scales(plan, scales, storage.scales.data_ptr(), pipeline, vectors, walk, job)
        else:
            if cutlass.const_expr(plan.moves_registers):
                cute.arch.setmaxregister_increase(plan.consumer_registers)
            consumer.consume(
                plan,
                (
                    shared_x,
                    shared_y,
                    shared_d,
                    storage.d.data_ptr(),
                    storage.maxima.data_ptr(),
                    storage.vectors.data_ptr(),
                    storage.scales.data_ptr(),
                ),
                pipeline,
                order,
                (store_d, coords_d),
                ending,
                vectors,
                walk,
                job,
            )
        if cutlass.const_expr(plan.cluster_size > 1):  # nobody leaves while others still signal its barriers
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
