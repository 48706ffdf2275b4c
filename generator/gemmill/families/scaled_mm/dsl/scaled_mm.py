"""D[m, n] = epilogue(A[m, k] B[k, n]) on Hopper: one producer warp with TMA, one or two consumer groups with WGMMA.

Read in the order in which the machine works. First come `facts.py` (what is known when it is compiled), and here the
call, shared memory and barriers. Then follow `producer.py`, `consumer.py`, and the consumers' `mainloop.py` and
`epilogue.py`.
"""

# mypy: ignore-errors
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup

from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.families.scaled_mm.dsl.plan import Plan
from gemmill.gemm import consumer, epilogue, producer
from gemmill.gemm.elements import ELEMENT_OF
from gemmill.gemm.limits import SLAB
from gemmill.gemm.pipeline import GroupOrder, Pipeline
from gemmill.gemm.walk import Job, Walk, rows_back, steps_before, walk_over


class ScaledMm:
    """One kernel, and the function that launches it. Raises ValueError for a config that it cannot be made of."""

    def __init__(self, config: KernelConfig) -> None:
        self.plan = Plan(config)
        self.x_type = ELEMENT_OF[self.plan.x_dtype]
        self.y_type = ELEMENT_OF[self.plan.y_dtype]
        self.out_type = ELEMENT_OF[config.out_dtype]
        self.sum_type = ELEMENT_OF[self.plan.sum_dtype]

    # The call --------------------------------------------------------------------------------------------------------

    @cute.jit
    def __call__(
        self,
        a: cute.Pointer,
        b: cute.Pointer,
        d: cute.Pointer,
        a_scales: cute.Pointer,
        b_scales: cute.Pointer,
        bias: cute.Pointer,
        azp_adj: cute.Pointer,
        azp: cute.Pointer,
        workspace: cute.Pointer,
        ticket: Int64,
        lda: Int64,
        ldb: Int64,
        ldd: Int64,
        m: Int32,
        n: Int32,
        k: Int32,
        a_scale_per_row: Int32,
        b_scale_per_column: Int32,
        raster_order: Int32,
        swizzle: Int32,
        splits: Int32,
        sm_count: Int32,
        programmatic_launch: Int32,
        constant_weights: Int32,
        a_scale_stride_m: Int64,
        a_scale_stride_k: Int64,
        b_scale_stride_n: Int64,
        b_scale_stride_k: Int64,
        stream: cuda.CUstream,
    ) -> Int32:
        """Enqueues one GEMM. Pointers, leading dimensions and flags are those of `gemmill_scaled_mm_args`."""
        vectors = epilogue.Vectors(a_scales, b_scales, bias, azp_adj, azp, m, n, k, a_scale_per_row, b_scale_per_column)
        scales = producer.GroupScales(
            a_scales, b_scales, a_scale_stride_m, a_scale_stride_k, b_scale_stride_n, b_scale_stride_k
        )
        settings = (raster_order, swizzle, splits, sm_count, programmatic_launch, constant_weights)
        self.enqueue((a, b, d, workspace, ticket), (lda, ldb, ldd), vectors, scales, settings, stream)
        return Int32(0)

    @cute.jit
    def enqueue(
        self,
        operands: tuple,
        strides: tuple,
        vectors,
        scales: producer.GroupScales,
        settings: tuple,
        stream: cuda.CUstream,
    ):
        """Enqueues one GEMM as `__call__` does, with what the epilogue reads in one value."""
        (a, b, d, workspace, ticket), (lda, ldb, ldd) = operands, strides
        m, n, k = vectors.m, vectors.n, vectors.k
        raster_order, swizzle, splits, sm_count, programmatic_launch, constant_weights = settings
        plan = self.plan
        x, ldx, y, ldy = a, lda, b, ldb
        size_x, size_y = m, n
        d_stride = (cute.assume(ldd, divby=8), 1)
        if cutlass.const_expr(plan.swap_ab):
            x, ldx, y, ldy = b, ldb, a, lda
            size_x, size_y = n, m
            d_stride = (1, cute.assume(ldd, divby=8))
        tensor_x = cute.make_tensor(
            x, cute.make_layout((size_x, k), stride=(cute.assume(ldx, divby=128 // plan.x_dtype.bits), 1))
        )
        tensor_y = cute.make_tensor(
            y, cute.make_layout((size_y, k), stride=(cute.assume(ldy, divby=128 // plan.y_dtype.bits), 1))
        )
        tensor_d = cute.make_tensor(d, cute.make_layout((size_x, size_y), stride=d_stride))

        layout_x = self._stage_layout(self.x_type, plan.tile_x)
        layout_y = self._stage_layout(self.y_type, plan.tile_y)
        layout_d = self._store_layout()
        load_x, coords_x = self._load_atom(tensor_x, layout_x, plan.tile_x, plan.cluster_y)
        load_y, coords_y = self._load_atom(tensor_y, layout_y, plan.tile_y, plan.cluster_x)
        load_box, coords_box = None, None
        if cutlass.const_expr(plan.box_rows):
            load_box, coords_box = self._box_atom(tensor_y, layout_y)
        store_d, coords_d = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(),
            tensor_d,
            cute.slice_(layout_d, (None, None, 0)),
            (SLAB, plan.store_columns),
        )

        tiles_x = cute.ceil_div(size_x, plan.tile_x * plan.cluster_x)
        tiles_y = cute.ceil_div(size_y, plan.tile_y * plan.cluster_y)
        if cutlass.const_expr(plan.split_k):
            grid_x, cluster_size, slices = tiles_x * tiles_y * splits, splits, splits
        elif cutlass.const_expr(plan.split_k_parallel):
            cluster_size = plan.cluster_size
            slices = cutlass.max(1, cutlass.min(splits, cute.ceil_div(k, plan.slice_step)))  # none is empty
            grid_x = tiles_x * tiles_y * slices * cluster_size
        else:
            cluster_size = plan.cluster_size
            slices = splits if plan.restarts else cluster_size
            grid_x = cutlass.min(sm_count * plan.ctas_of_sm // cluster_size, tiles_x * tiles_y) * cluster_size
        self.kernel(
            load_x,
            coords_x,
            load_y,
            coords_y,
            load_box,
            coords_box,
            store_d,
            coords_d,
            layout_x,
            layout_y,
            layout_d,
            vectors,
            scales,
            walk_over(tiles_x, tiles_y, raster_order, swizzle),
            constant_weights,
            d,
            ldd,
            cute.fast_divmod_create_divisor_v2(slices),
            workspace,
            ticket,
        ).launch(
            grid=(grid_x, 1, 1),
            block=(plan.threads, 1, 1),
            cluster=(cluster_size, 1, 1),
            min_blocks_per_mp=plan.ctas_of_sm,
            preferred_smem_carveout=100,  # left open, the DSL would ask a driver
            use_pdl=programmatic_launch,
            stream=stream,
        )

    def _stage_layout(self, element: type, rows: int) -> cute.ComposedLayout:
        """Stages of an operand, as TMA writes and WGMMA reads them without bank conflicts."""
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, element)
        return cute.tile_to_shape(atom, (rows, self.plan.tile_k, self.plan.stages), order=(0, 1, 2))

    def _store_layout(self) -> cute.ComposedLayout:
        """Boxes of D on their way out, of all consumer groups."""
        plan, kinds = self.plan, warpgroup.SmemLayoutAtomKind
        along_x = {128: kinds.MN_SW128}
        along_y = {128: kinds.K_SW128, 64: kinds.K_SW64, 32: kinds.K_SW32}
        kind = along_x[2 * SLAB] if plan.swap_ab else along_y[2 * plan.store_columns]
        shape = (SLAB, plan.store_columns, plan.store_buffers * plan.consumer_groups)
        atom = warpgroup.make_smem_layout_atom(kind, self.out_type)
        return cute.tile_to_shape(atom, shape, order=(1, 0, 2) if plan.swap_ab else (0, 1, 2))

    def _load_atom(self, tensor: cute.Tensor, layout: cute.ComposedLayout, rows: int, sharers: int):
        """TMA that loads a stage of an operand, in slices when a cluster's CTAs share it."""
        op = cpasync.CopyBulkTensorTileG2SOp() if sharers == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
        return cpasync.make_tiled_tma_atom(
            op, tensor, cute.slice_(layout, (None, None, 0)), (rows, self.plan.tile_k), num_multicast=sharers
        )

    def _box_atom(self, tensor: cute.Tensor, layout: cute.ComposedLayout):
        """TMA that loads a box of rows to its place in a stage of Y."""
        plan = self.plan
        line = 1024 // plan.y_dtype.bits  # elements of 128 bytes; of a stage all rows have one, then all the next
        strides = (line, (1, line * plan.tile_y))
        box = cute.make_layout((plan.box_rows, (line, plan.tile_k // line)), stride=strides)
        return cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(),
            tensor,
            cute.make_composed_layout(layout.inner, 0, box),
            (plan.box_rows, plan.tile_k),
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
            d: cute.struct.Align[cute.struct.MemRange[self.out_type, max(plan.store_elements, 8)], 1024]
            vectors: cute.struct.MemRange[Float32, max(plan.consumer_groups * plan.vector_words, 4)]
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
        load_box: cute.CopyAtom | None,
        coords_box: cute.Tensor | None,
        store_d: cute.CopyAtom,
        coords_d: cute.Tensor,
        layout_x: cute.ComposedLayout,
        layout_y: cute.ComposedLayout,
        layout_d: cute.ComposedLayout,
        vectors,
        scales: producer.GroupScales,
        walk: Walk,
        constant_weights: Int32,
        d: cute.Pointer,
        ldd: Int64,
        slices: cute.FastDivmodDivisorV2,
        workspace: cute.Pointer,
        ticket: Int64,
    ):
        plan = self.plan
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        first_producer = plan.consumers // 32

        # Shared memory
        storage = cutlass.utils.SmemAllocator().allocate(self._shared_storage(layout_x, layout_y, layout_d))
        shared_x = storage.x.get_tensor(layout_x.outer, swizzle=layout_x.inner)
        shared_y = storage.y.get_tensor(layout_y.outer, swizzle=layout_y.inner)
        shared_d = storage.d.get_tensor(layout_d.outer, swizzle=layout_d.inner)
        shared_scales = storage.scales.data_ptr()
        shared_vectors = storage.vectors.data_ptr()
        partial_sums = cute.recast_ptr(storage.x.data_ptr(), dtype=self.sum_type)
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

        # This CTA's job: the first tile of its cluster, how far the next one is, and its K steps
        k_steps = cute.ceil_div(vectors.k, plan.tile_k)
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        job = Job(block // plan.cluster_size, blocks // plan.cluster_size, Int32(0), k_steps)
        rank = Int32(0)
        if cutlass.const_expr(plan.split_k):
            rank = cute.arch.block_idx_in_cluster()
            begin, end = (steps_before(plan, k_steps, place, slices) for place in (rank, rank + 1))
            job = Job(block // slices, walk.tiles(), begin, end - begin)
        if cutlass.const_expr(plan.split_k_parallel):
            tile, rank = divmod(block // plan.cluster_size, slices)
            begin, end = (steps_before(plan, k_steps, place, slices) for place in (rank, rank + 1))
            job = Job(tile, walk.tiles(), begin, end - begin)

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
                    (load_box, coords_box, shared_y) if plan.box_rows else None,
                )
            if cutlass.const_expr(plan.grouped):
                if warp > first_producer and warp <= first_producer + plan.scale_warps:
                    producer.load_scales(plan, scales, shared_scales, pipeline, vectors, walk, job)
        else:
            if cutlass.const_expr(plan.moves_registers):
                cute.arch.setmaxregister_increase(plan.consumer_registers)
            consumer.consume(
                plan,
                (shared_x, shared_y, shared_d, shared_scales, shared_vectors, partial_sums),
                pipeline,
                order,
                (store_d, coords_d),
                vectors,
                walk,
                job,
                (workspace, ticket, d, ldd, rank, slices.divisor),
            )
        if cutlass.const_expr(plan.split_k):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
            if warp < first_producer:
                at_x, at_y = walk.at(job.first)
                m_first = at_y * plan.tile_m - rows_back(plan, at_y, vectors.m)
                origin = (at_x * plan.tile_x, m_first)
                epilogue.meet(plan, partial_sums, vectors, d, ldd, (thread, rank, slices.divisor), origin)
            cute.arch.cluster_arrive_relaxed()  # nobody leaves while others still read its sums
            cute.arch.cluster_wait()
        if cutlass.const_expr(plan.cluster_size > 1):  # nobody leaves while others still signal its barriers
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
