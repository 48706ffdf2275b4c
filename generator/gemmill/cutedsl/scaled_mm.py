"""D[m, n] = epilogue(A[m, k] B[k, n]) on Hopper: one producer warp with TMA, one or two consumer groups with WGMMA.

Read from top to bottom it is the order in which the machine works: the call, shared memory, barriers, producer, scale
loader, consumers. The consumers' arithmetic is in `mainloop.py`, what they store in `epilogue.py`.
"""

# mypy: ignore-errors
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int16, Int32, Int64
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.cute.nvgpu import warp as warp_ops

from gemmill.cutedsl import epilogue, mainloop
from gemmill.cutedsl.plan import SLAB, Plan
from gemmill.cutedsl.walk import Walk
from gemmill.space.config import KernelConfig
from gemmill.vocab import DType

ELEMENT_OF = {
    DType.E4M3: cutlass.Float8E4M3FN,
    DType.E5M2: cutlass.Float8E5M2,
    DType.S8: cutlass.Int8,
    DType.BF16: cutlass.BFloat16,
    DType.F16: cutlass.Float16,
}
EVICT_FIRST = 0x12F0000000000000
"""Cache policy of data that is read once: the weights of a kernel with few tokens."""
EVICT_LAST = 0x14F0000000000000
"""Cache policy of data that many CTAs read."""


class ScaledMm:
    """One kernel, and the function that launches it. Raises ValueError for a config that it cannot be made of."""

    workspace_bytes = 0
    """Partial sums meet in distributed shared memory: no kernel needs a workspace."""

    def __init__(self, config: KernelConfig) -> None:
        self.plan = Plan(config)
        self.x_type = ELEMENT_OF[self.plan.x_dtype]
        self.y_type = ELEMENT_OF[self.plan.y_dtype]
        self.out_type = ELEMENT_OF[config.problem.out_dtype]
        self.sum_type = Int32 if config.problem.a_dtype is DType.S8 else Float32

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
        store_d, coords_d = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(),
            tensor_d,
            cute.slice_(layout_d, (None, None, 0)),
            (SLAB, plan.store_columns),
        )

        tiles_x = cute.ceil_div(size_x, plan.tile_x * plan.cluster_x)
        tiles_y = cute.ceil_div(size_y, plan.tile_y * plan.cluster_y)
        if cutlass.const_expr(plan.split_k):
            grid_x, cluster_size = tiles_x * tiles_y * splits, splits
        else:
            cluster_size = plan.cluster_size
            grid_x = cutlass.min(sm_count * plan.ctas_of_sm // cluster_size, tiles_x * tiles_y) * cluster_size
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
            epilogue.Vectors(
                a_scales, b_scales, bias, azp_adj, azp, m, n, k, a_scale_per_row, b_scale_per_column
            ),
            mainloop.GroupScales(
                a_scales, b_scales, a_scale_stride_m, a_scale_stride_k, b_scale_stride_n, b_scale_stride_k
            ),
            Walk(tiles_x, tiles_y, raster_order, swizzle),
            constant_weights,
            d,
            ldd,
            cluster_size,
        ).launch(
            grid=(grid_x, 1, 1),
            block=(plan.threads, 1, 1),
            cluster=(cluster_size, 1, 1),
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

    def _shared_storage(self, layout_x: cute.ComposedLayout, layout_y: cute.ComposedLayout, layout_d: cute.ComposedLayout):
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
        store_d: cute.CopyAtom,
        coords_d: cute.Tensor,
        layout_x: cute.ComposedLayout,
        layout_y: cute.ComposedLayout,
        layout_d: cute.ComposedLayout,
        vectors: epilogue.Vectors,
        scales: mainloop.GroupScales,
        walk: Walk,
        constant_weights: Int32,
        d: cute.Pointer,
        ldd: Int64,
        cluster_size: Int32,
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
        full, empty, turn = storage.full.data_ptr(), storage.empty.data_ptr(), storage.turn.data_ptr()

        # Barriers
        if warp == first_producer:
            cpasync.prefetch_descriptor(load_x)
            cpasync.prefetch_descriptor(load_y)
            cpasync.prefetch_descriptor(store_d)
            with cute.arch.elect_one():
                readers = 4 * (1 if plan.pingpong else plan.consumer_groups) * plan.sharers
                for stage in cutlass.range_constexpr(plan.stages):
                    cute.arch.mbarrier_init(full + stage, 33 if plan.grouped else 1)
                    cute.arch.mbarrier_init(empty + stage, readers)
                for i in cutlass.range_constexpr(2):
                    cute.arch.mbarrier_init(turn + i, 4)
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
        job = (block // cluster_size, blocks // cluster_size, Int32(0), k_steps)
        rank = Int32(0)
        if cutlass.const_expr(plan.split_k):
            rank = cute.arch.block_idx_in_cluster()
            begin, end = k_steps * rank // cluster_size, k_steps * (rank + 1) // cluster_size
            job = (block // cluster_size, walk.tiles(), begin, end - begin)

        if warp >= first_producer:
            if cutlass.const_expr(plan.moves_registers):
                cute.arch.setmaxregister_decrease(plan.producer_registers)
            if warp == first_producer:
                self._load_operands((load_x, coords_x, shared_x), (load_y, coords_y, shared_y), (full, empty), walk, job, constant_weights)
            if cutlass.const_expr(plan.grouped):
                if warp == first_producer + 1:
                    self._load_scales(scales, shared_scales, (full, empty), vectors, walk, job)
        else:
            if cutlass.const_expr(plan.moves_registers):
                cute.arch.setmaxregister_increase(plan.consumer_registers)
            self._consume(
                (shared_x, shared_y, shared_d, shared_scales, shared_vectors, partial_sums),
                (full, empty, turn),
                (store_d, coords_d),
                vectors,
                walk,
                job,
            )
        if cutlass.const_expr(plan.split_k):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
            if warp < first_producer:
                at_x, at_y = walk.at(job[0])
                origin = (at_x * plan.tile_x, at_y * plan.tile_y)
                epilogue.meet(plan, partial_sums, vectors, d, ldd, (thread, rank, cluster_size), origin)
            cute.arch.cluster_arrive_relaxed()  # nobody leaves while others still read its sums
            cute.arch.cluster_wait()
        if cutlass.const_expr(plan.cluster_size > 1):  # nobody leaves while others still signal its barriers
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()

    @cute.jit
    def _tile(self, walk: Walk, index: Int32):
        """This CTA's tile (x, y) of the `index`-th tile of its cluster."""
        plan = self.plan
        x, y = walk.at(index)
        if cutlass.const_expr(plan.cluster_size > 1):
            rank = cute.arch.block_idx_in_cluster()
            x = x * plan.cluster_x + rank % plan.cluster_x
            y = y * plan.cluster_y + rank // plan.cluster_x
        return x, y

    # Producer --------------------------------------------------------------------------------------------------------

    @cute.jit
    def _load_operands(self, x: tuple, y: tuple, barriers: tuple, walk: Walk, job: tuple, constant_weights: Int32):
        """One warp keeps every stage under way. Weights that nobody writes need not wait for the kernel before this one."""
        plan = self.plan
        full, empty = barriers
        first, step, k_first, k_steps = job
        parts_x = self._partition(x, plan.cluster_y, plan.tile_x, True)
        parts_y = self._partition(y, plan.cluster_x, plan.tile_y, False)
        weights, tokens = (parts_x, parts_y) if plan.swap_ab else (parts_y, parts_x)

        early = Int32(0)
        if constant_weights != 0:
            early = cutlass.min(k_steps, plan.stages)
            at_x, at_y = self._tile(walk, first)
            for t in cutlass.range(early, unroll=1):
                self._announce(full + t)
                self._load(weights, at_x if plan.swap_ab else at_y, k_first + t, t, full)
        elif cutlass.const_expr(plan.prefetched > 0):
            at_x, at_y = self._tile(walk, first)
            for t in cutlass.range(cutlass.min(k_steps, plan.prefetched), unroll=1):
                atom, _, in_memory, _, _ = weights
                cute.prefetch(atom, in_memory[None, at_x if plan.swap_ab else at_y, k_first + t])
        cute.arch.griddepcontrol_wait()

        stage, phase = Int32(0), Int32(1)
        loaded = Int32(0)
        tile = first
        while tile < walk.tiles():
            at_x, at_y = self._tile(walk, tile)
            for k_step in cutlass.range(k_steps, unroll=1):
                if loaded >= early:
                    cute.arch.mbarrier_wait(empty + stage, phase)
                    self._announce(full + stage)
                    self._load(weights, at_x if plan.swap_ab else at_y, k_first + k_step, stage, full)
                self._load(tokens, at_y if plan.swap_ab else at_x, k_first + k_step, stage, full)
                loaded = loaded + 1
                stage = stage + 1
                if stage == plan.stages:
                    stage = Int32(0)
                    phase = phase ^ 1
            tile = tile + step

    @cute.jit
    def _partition(self, operand: tuple, sharers: int, rows: int, is_x: bool):
        """(atom, shared stages, tiles in memory, multicast mask, cache policy) of an operand."""
        plan = self.plan
        atom, coords, shared = operand
        tiles = cute.local_tile(coords, (rows, plan.tile_k), (None, None))
        rank, mask, policy = Int32(0), None, None
        if cutlass.const_expr(plan.swap_ab):  # few tokens: every weight is read once, every token by all
            policy = Int64(EVICT_FIRST if is_x else EVICT_LAST)
        if cutlass.const_expr(sharers > 1):
            own = cute.arch.block_idx_in_cluster()
            if cutlass.const_expr(is_x):
                rank = own // plan.cluster_x
                lanes = sum(1 << (i * plan.cluster_x) for i in range(plan.cluster_y))
                mask = Int16(lanes) << Int16(own % plan.cluster_x)
            else:
                rank = own % plan.cluster_x
                mask = Int16((1 << plan.cluster_x) - 1) << Int16(own // plan.cluster_x * plan.cluster_x)
        in_shared, in_memory = cpasync.tma_partition(
            atom, rank, cute.make_layout(sharers), cute.group_modes(shared, 0, 2), cute.group_modes(tiles, 0, 2)
        )
        return atom, in_shared, in_memory, mask, policy

    @cute.jit
    def _announce(self, barrier: cute.Pointer):
        """Tells a stage's barrier how many bytes are on their way."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, self.plan.x_bytes + self.plan.y_bytes)

    @cute.jit
    def _load(self, part: tuple, tile: Int32, k_step: Int32, stage: Int32, full: cute.Pointer):
        """Starts the load of one operand's stage."""
        atom, in_shared, in_memory, mask, policy = part
        cute.copy(
            atom,
            in_memory[None, tile, k_step],
            in_shared[None, stage],
            tma_bar_ptr=full + stage,
            mcast_mask=mask,
            cache_policy=policy,
        )

    @cute.jit
    def _load_scales(self, scales, shared: cute.Pointer, barriers: tuple, vectors, walk: Walk, job: tuple):
        """One warp copies the scales that belong to each stage."""
        plan = self.plan
        full, empty = barriers
        first, step, k_first, k_steps = job
        cute.arch.griddepcontrol_wait()
        stage, phase = Int32(0), Int32(1)
        tile = first
        while tile < walk.tiles():
            at_x, at_y = self._tile(walk, tile)
            at_m, at_n = (at_y, at_x) if plan.swap_ab else (at_x, at_y)
            origin = (at_m * plan.tile_m, at_n * plan.tile_n)
            for k_step in cutlass.range(k_steps, unroll=1):
                cute.arch.mbarrier_wait(empty + stage, phase)
                mainloop.load_scales(
                    plan,
                    scales,
                    shared + stage * plan.scales,
                    k_first + k_step,
                    origin,
                    (vectors.m, vectors.n, vectors.k),
                )
                cute.arch.cp_async_mbarrier_arrive_noinc(full + stage)
                stage = stage + 1
                if stage == plan.stages:
                    stage = Int32(0)
                    phase = phase ^ 1
            tile = tile + step

    # Consumers -------------------------------------------------------------------------------------------------------

    @cute.jit
    def _consume(self, shared: tuple, barriers: tuple, output: tuple, vectors, walk: Walk, job: tuple):
        """A group multiplies and stores its part of every tile or, in pingpong, every second tile."""
        plan = self.plan
        shared_x, shared_y, shared_d, shared_scales, shared_vectors, partial_sums = shared
        full, empty, turn = barriers
        store_d, coords_d = output
        first, step, k_first, k_steps = job
        group = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // 128)
        thread = cute.arch.thread_idx()[0] % 128
        part = Int32(0) if plan.pingpong else group

        loop = self._mainloop(shared_x, shared_y, shared_scales, (full, empty), part)
        own_d = cute.local_tile(shared_d, (SLAB, plan.store_columns, plan.store_buffers), (0, 0, group))
        to_shared = cute.make_tiled_copy_C(
            cute.make_copy_atom(warp_ops.StMatrix8x8x16bOp(plan.swap_ab, 4), self.out_type), self._mma(plan.store_columns)
        )
        own_vectors = epilogue.vectors_of(plan, shared_vectors + group * plan.vector_words)
        boxes = cute.zipped_divide(coords_d, (SLAB, plan.store_columns))
        from_shared, to_global = cpasync.tma_partition(
            store_d, 0, cute.make_layout(1), cute.group_modes(own_d, 0, 2), boxes
        )

        cute.arch.griddepcontrol_wait()
        tile, done = first, Int32(0)
        if cutlass.const_expr(plan.pingpong):
            tile = first + group * step
            done = group * k_steps
        turn_phase = Int32(0)
        while tile < walk.tiles():
            at_x, at_y = self._tile(walk, tile)
            x0, y0 = at_x * plan.tile_x + part * plan.group_rows, at_y * plan.tile_y
            n0 = at_x * plan.tile_x if plan.swap_ab else y0
            if cutlass.const_expr(not plan.split_k):
                held = epilogue.fetch(plan, vectors, thread, (y0, x0) if plan.swap_ab else (x0, y0))
            if cutlass.const_expr(plan.pingpong):
                # The other group's multiplications come first, except before the very first tile.
                cute.arch.mbarrier_wait(turn + group, turn_phase ^ (group ^ 1))
            mainloop.accumulate(plan, loop, (done, k_steps), (part, thread, n0))
            if cutlass.const_expr(plan.pingpong):
                if thread % 32 == 0:
                    cute.arch.mbarrier_arrive(turn + (group ^ 1))
                turn_phase = turn_phase ^ 1
            if cutlass.const_expr(plan.split_k):
                epilogue.park(plan, loop.sums, partial_sums, (group, thread))
            else:
                epilogue.share(plan, held, own_vectors, (group, thread))
                epilogue.store(
                    plan, loop.sums, own_vectors, own_d, (to_shared, store_d, from_shared, to_global), (group, thread), (x0, y0)
                )
            tile = tile + step * (2 if plan.pingpong else 1)
            done = done + k_steps * (2 if plan.pingpong else 1)
        if thread < 32:
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    def _mainloop(
        self, shared_x: cute.Tensor, shared_y: cute.Tensor, shared_scales: cute.Pointer, barriers: tuple, part: Int32
    ) -> mainloop.Mainloop:
        """Fragments, sums and scales of one consumer group."""
        plan = self.plan
        replacing, adding = self._mma(), self._mma()
        replacing.set(warpgroup.Field.ACCUMULATE, False)
        adding.set(warpgroup.Field.ACCUMULATE, True)
        thread_mma = adding.get_slice(0)
        slabs_x = [
            cute.local_tile(shared_x, (SLAB, plan.tile_k, plan.stages), (part * plan.slabs + slab, 0, 0))
            for slab in range(plan.slabs)
        ]
        shape = adding.partition_shape_C((SLAB, plan.tile_y))
        scales_of_group = plan.scales // plan.promotions
        return mainloop.Mainloop(
            mmas=(replacing, adding),
            operands=(
                [adding.make_fragment_A(thread_mma.partition_A(slab)) for slab in slabs_x],
                adding.make_fragment_B(thread_mma.partition_B(shared_y)),
            ),
            barriers=barriers,
            scales=cute.make_tensor(
                shared_scales,
                cute.make_layout(
                    (max(scales_of_group, 1), plan.promotions, plan.stages), stride=(1, scales_of_group, plan.scales)
                ),
            ),
            sums=[cute.make_rmem_tensor(shape, self.sum_type) for _ in range(plan.slabs)],
            partials=[cute.make_rmem_tensor(shape, self.sum_type) for _ in range(plan.partials)],
            factors=[cute.make_rmem_tensor(plan.factors, Float32) for _ in range(plan.partials)],
        )

    def _mma(self, columns: int | None = None) -> cute.TiledMma:
        """One consumer group's WGMMA."""
        plan = self.plan
        shape = (SLAB, columns or plan.tile_y)
        k, major = OperandMajorMode.K, warpgroup.OperandSource.SMEM
        if plan.x_dtype is DType.S8:
            op = warpgroup.MmaI8Op(self.x_type, self.y_type, self.sum_type, shape, major, k, k)
        elif plan.x_dtype.bits == 8:
            op = warpgroup.MmaF8Op(self.x_type, self.y_type, self.sum_type, shape, major, k, k)
        else:
            op = warpgroup.MmaF16BF16Op(self.x_type, self.sum_type, shape, major, k, k)
        return cute.make_tiled_mma(cute.make_mma_atom(op))
