"""D[m, n] = epilogue(A[m, k] B[e, n, k]) on Hopper, e being the expert of row m: one launch for all experts.

Read in the order in which the machine works. First come `plan.py`, and here the call, shared memory and barriers. Then
follow `experts.py`, `producer.py`, `gather.py` and `consumer.py`. Last are the consumers' main loop (gemmill.gemm) and
`rows.py`.
"""

# mypy: ignore-errors
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup

from gemmill.families.moe.config import GroupedConfig
from gemmill.families.moe.dsl import consumer, gather
from gemmill.families.moe.dsl.plan import Plan
from gemmill.gemm import epilogue
from gemmill.gemm import expert_producer as producer
from gemmill.gemm.elements import ELEMENT_OF
from gemmill.gemm.experts import BAND, Experts, Tables, Vectors, Walk, fill
from gemmill.gemm.limits import SLAB
from gemmill.gemm.walk import Job


class GroupedMm:
    """One kernel, and the function that launches it. Raises ValueError for a config that it cannot be made of."""

    def __init__(self, config: GroupedConfig) -> None:
        self.plan = Plan(config)
        self.x_type = ELEMENT_OF[self.plan.x_dtype]
        self.y_type = ELEMENT_OF[self.plan.y_dtype]
        self.out_type = ELEMENT_OF[config.problem.out_dtype]

    # The call --------------------------------------------------------------------------------------------------------

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
        stream: cuda.CUstream,
    ) -> Int32:
        """Enqueues one grouped GEMM. Pointers, strides and flags are those of `gemmill_grouped_mm_args`."""
        plan = self.plan
        lda, ldb = cute.assume(lda, divby=128 // plan.x_dtype.bits), cute.assume(ldb, divby=128 // plan.x_dtype.bits)
        ldd = cute.assume(ldd, divby=8)
        b_stride_expert = cute.assume(b_stride_expert, divby=128 // plan.x_dtype.bits)
        tensor_a = cute.make_tensor(a, cute.make_layout((tokens, k), stride=(lda, 1)))
        tensor_b = cute.make_tensor(b, cute.make_layout((n, k, weights), stride=(ldb, 1, b_stride_expert)))
        d_shape, d_stride = ((n, m), (1, ldd)) if plan.swap_ab else ((m, n), (ldd, 1))
        tensor_d = cute.make_tensor(d, cute.make_layout(d_shape, stride=d_stride))

        layout_x, layout_y = self._stage_layout(self.x_type, plan.tile_x), self._stage_layout(self.y_type, plan.tile_y)
        layout_a, layout_b = (layout_y, layout_x) if plan.swap_ab else (layout_x, layout_y)
        layout_d = self._store_layout()
        load_b, coords_b = self._load_atom(tensor_b, layout_b, plan.tile_n, 1)
        load_a, coords_a = load_b, coords_b  # in vain, where rows are gathered
        if cutlass.const_expr(not plan.indexed):
            load_a, coords_a = self._load_atom(tensor_a, layout_a, plan.tile_m, plan.cluster_size)
        store_d, coords_d = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(),
            tensor_d,
            cute.slice_(layout_d, (None, None, 0)),
            (SLAB, plan.store_columns),
        )

        tiles_n = cute.ceil_div(n, plan.tile_n * plan.cluster_size)
        tiles_m = m // plan.tile_m + cutlass.min(m, experts)  # at most, of segments that follow one another
        if slot != 0:
            tiles_m = cute.ceil_div(slot, plan.tile_m) * experts
        null = cute.make_ptr(Int32, 0, cute.AddressSpace.gmem, assumed_align=4)
        no_bias = cute.recast_ptr(null, dtype=self.out_type)
        clusters = cutlass.min(sm_count * plan.ctas_of_sm // plan.cluster_size, tiles_m * tiles_n)
        self.kernel(
            load_a,
            coords_a,
            load_b,
            coords_b,
            store_d,
            coords_d,
            layout_x,
            layout_y,
            layout_d,
            Vectors(
                epilogue.Vectors(
                    a_scales, b_scales, no_bias, null, null, tokens, n, k, a_scale_per_row, b_scale_per_column
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
            Experts(offsets, offset_words, expert_map, experts, weights, slot, m),
            gather.Tokens(token_ids, id_words, m, tokens, a, lda),
            Walk(tiles_n, cute.fast_divmod_create_divisor_v2(BAND * tiles_n)),
            d,
            ldd,
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

    def _shared_storage(
        self, layout_x: cute.ComposedLayout, layout_y: cute.ComposedLayout, layout_d: cute.ComposedLayout
    ):
        plan = self.plan

        @cute.struct
        class SharedStorage:
            full: cute.struct.MemRange[Int64, plan.stages]
            empty: cute.struct.MemRange[Int64, plan.stages]
            turn: cute.struct.MemRange[Int64, 2]
            first: cute.struct.MemRange[Int32, plan.most_experts + 1]
            begin: cute.struct.MemRange[Int32, plan.most_experts]
            end: cute.struct.MemRange[Int32, plan.most_experts]
            warps: cute.struct.MemRange[Int32, plan.threads // 32]
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
        load_a: cute.CopyAtom,
        coords_a: cute.Tensor,
        load_b: cute.CopyAtom,
        coords_b: cute.Tensor,
        store_d: cute.CopyAtom,
        coords_d: cute.Tensor,
        layout_x: cute.ComposedLayout,
        layout_y: cute.ComposedLayout,
        layout_d: cute.ComposedLayout,
        vectors: Vectors,
        scales: producer.GroupScales,
        experts: Experts,
        tokens: gather.Tokens,
        walk: Walk,
        d: cute.Pointer,
        ldd: Int64,
    ):
        plan = self.plan
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        first_producer = plan.consumers // 32

        # Shared memory
        storage = cutlass.utils.SmemAllocator().allocate(self._shared_storage(layout_x, layout_y, layout_d))
        shared_x = storage.x.get_tensor(layout_x.outer, swizzle=layout_x.inner)
        shared_y = storage.y.get_tensor(layout_y.outer, swizzle=layout_y.inner)
        shared_d = storage.d.get_tensor(layout_d.outer, swizzle=layout_d.inner)
        shared_a, shared_b = (shared_y, shared_x) if cutlass.const_expr(plan.swap_ab) else (shared_x, shared_y)
        bytes_a = storage.y.data_ptr().toint() if cutlass.const_expr(plan.swap_ab) else storage.x.data_ptr().toint()
        full, empty, turn = storage.full.data_ptr(), storage.empty.data_ptr(), storage.turn.data_ptr()
        parts = (storage.first, storage.begin, storage.end, storage.warps)
        sizes = (plan.most_experts + 1, plan.most_experts, plan.most_experts, plan.threads // 32)
        tables = Tables(*(part.get_tensor(cute.make_layout(size)) for part, size in zip(parts, sizes, strict=True)))

        # Barriers
        if warp == first_producer:
            cpasync.prefetch_descriptor(load_a)
            cpasync.prefetch_descriptor(load_b)
            cpasync.prefetch_descriptor(store_d)
            with cute.arch.elect_one():
                readers = 4 * (1 if plan.pingpong else plan.consumer_groups) * plan.sharers
                for stage in cutlass.range_constexpr(plan.stages):
                    cute.arch.mbarrier_init(full + stage, 1 + plan.copying_threads)
                    cute.arch.mbarrier_init(empty + stage, readers)
                for i in cutlass.range_constexpr(2):
                    cute.arch.mbarrier_init(turn + i, 4)
                cute.arch.mbarrier_init_fence()

        # Which rows are whose: the kernel before may have written it
        cute.arch.griddepcontrol_wait()
        fill(plan, tables, experts, walk)
        if cutlass.const_expr(plan.cluster_size > 1):
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
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
                    (load_a, coords_a, shared_a),
                    (load_b, coords_b, shared_b),
                    (full, empty),
                    tables,
                    experts,
                    walk,
                    job,
                )
            if cutlass.const_expr(plan.indexed):
                if warp > first_producer and warp <= first_producer + plan.scale_warps:
                    gather.load_tokens(
                        plan,
                        tokens,
                        scales,
                        (bytes_a, storage.scales.data_ptr()),
                        (full, empty),
                        tables,
                        experts,
                        vectors,
                        walk,
                        job,
                    )
            elif cutlass.const_expr(plan.grouped):
                if warp > first_producer and warp <= first_producer + plan.scale_warps:
                    producer.load_scales(
                        plan, scales, storage.scales.data_ptr(), (full, empty), tables, experts, vectors, walk, job
                    )
        else:
            if cutlass.const_expr(plan.moves_registers):
                cute.arch.setmaxregister_increase(plan.consumer_registers)
            consumer.consume(
                plan,
                (shared_x, shared_y, shared_d, storage.scales.data_ptr(), storage.vectors.data_ptr()),
                (full, empty, turn),
                (store_d, coords_d, d, ldd),
                tables,
                experts,
                tokens,
                vectors,
                walk,
                job,
            )
        if cutlass.const_expr(plan.cluster_size > 1):  # nobody leaves while others still signal its barriers
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
