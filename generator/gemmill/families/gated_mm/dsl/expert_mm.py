"""D[m, h] = activation(gate) up on Hopper, of rows that belong to experts: one launch for all of them.

Read in the order in which the machine works. First come `gated_mm.py`, and here the call, shared memory and barriers.
Then follow `experts.py` and `expert_producer.py` of gemmill.gemm, `expert_consumer.py`, `values.py` and `ending.py`.
"""

# mypy: ignore-errors
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync

from gemmill.families.gated_mm.config import GROUP
from gemmill.families.gated_mm.dsl import expert_consumer
from gemmill.families.gated_mm.dsl.ending import Ending
from gemmill.families.gated_mm.dsl.gated_mm import GatedMm
from gemmill.families.gated_mm.dsl.scales import block_of
from gemmill.gemm import epilogue, expert_producer
from gemmill.gemm.experts import BAND, Experts, Tables, Vectors, Walk, fill
from gemmill.gemm.walk import Job


class ExpertGatedMm(GatedMm):
    """One kernel, and the function that launches it. Raises ValueError for a config that it cannot be made of."""

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
        experts: Int32,
        weights: Int32,
        slot: Int32,
        offset_words: Int32,
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
        plan = self.plan
        lda, ldb = cute.assume(lda, divby=128 // plan.x_dtype.bits), cute.assume(ldb, divby=128 // plan.x_dtype.bits)
        ldd = cute.assume(ldd, divby=16 // plan.result_bytes)
        b_stride_expert = cute.assume(b_stride_expert, divby=128 // plan.x_dtype.bits)
        tensor_a = cute.make_tensor(a, cute.make_layout((m, k), stride=(lda, 1)))
        tensor_b = cute.make_tensor(b, cute.make_layout((n, k, weights), stride=(ldb, 1, b_stride_expert)))
        tensor_d = cute.make_tensor(d, cute.make_layout((m, n // 2), stride=(ldd, 1)))

        layout_x, layout_y = self._stage_layout(self.x_type, plan.tile_x), self._stage_layout(self.y_type, plan.tile_y)
        layout_a, layout_b = (layout_y, layout_x) if plan.swap_ab else (layout_x, layout_y)
        layout_d = self._store_layout()
        load_a, coords_a = self._load_atom(tensor_a, layout_a, plan.tile_m, 1)
        load_b, coords_b = self._load_atom(tensor_b, layout_b, plan.tile_n, 1)
        store_d, coords_d = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(),
            tensor_d,
            cute.slice_(layout_d, (None, None, 0)),
            (plan.store_rows, plan.store_columns),
        )

        tiles_n = cute.ceil_div(n, plan.tile_n)
        tiles_m = m // plan.tile_m + cutlass.min(m, experts)  # at most, of segments that follow one another
        if slot != 0:
            tiles_m = cute.ceil_div(slot, plan.tile_m) * experts
        null = cute.make_ptr(Int32, 0, cute.AddressSpace.gmem, assumed_align=4)
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
                epilogue.Vectors(a_scales, b_scales, null, null, null, m, n, k, a_scale_per_row, b_scale_per_column),
                b_scale_stride_expert,
            ),
            expert_producer.GroupScales(
                a_scales,
                b_scales,
                a_scale_stride_m,
                a_scale_stride_k,
                b_scale_stride_n,
                b_scale_stride_k,
                b_scale_stride_expert,
            ),
            Ending(
                static_scale, out_scales, out_scale_stride_m, out_scale_stride_g, n // (2 * GROUP), alpha, limit, beta
            ),
            Experts(offsets, offset_words, expert_map, experts, weights, slot, m),
            Walk(tiles_n, cute.fast_divmod_create_divisor_v2(BAND * tiles_n)),
            d,
            ldd,
        ).launch(
            grid=(cutlass.min(sm_count * plan.ctas_of_sm, tiles_m * tiles_n), 1, 1),
            block=(plan.threads, 1, 1),
            cluster=(1, 1, 1),
            min_blocks_per_mp=plan.ctas_of_sm,
            preferred_smem_carveout=100,  # left open, the DSL would ask a driver
            use_pdl=programmatic_launch,
            stream=stream,
        )
        return Int32(0)

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
            d: cute.struct.Align[cute.struct.MemRange[self.out_type, cute.cosize(layout_d)], 1024]
            vectors: cute.struct.MemRange[Float32, max(plan.consumer_groups * plan.vector_words, 4)]
            maxima: cute.struct.MemRange[Float32, max(plan.maximum_words, 4)]
            scales: cute.struct.Align[cute.struct.MemRange[Float32, max(plan.stages * plan.scales, 4)], 16]

        return SharedStorage

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
        scales: expert_producer.GroupScales,
        ending: Ending,
        experts: Experts,
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
                readers = 4 * (1 if plan.pingpong else plan.consumer_groups)
                for stage in cutlass.range_constexpr(plan.stages):
                    cute.arch.mbarrier_init(full + stage, 1 + plan.copying_threads)
                    cute.arch.mbarrier_init(empty + stage, readers)
                for i in cutlass.range_constexpr(2):
                    cute.arch.mbarrier_init(turn + i, 4)
                cute.arch.mbarrier_init_fence()

        # Which rows are whose: the kernel before may have written it
        cute.arch.griddepcontrol_wait()
        fill(plan, tables, experts, walk)
        cute.arch.griddepcontrol_launch_dependents()

        # This CTA's job: its first tile, how far the next one is, and the K steps of each
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        job = Job(block, blocks, Int32(0), cute.ceil_div(vectors.k, plan.tile_k))

        if warp >= first_producer:
            if cutlass.const_expr(plan.moves_registers):
                cute.arch.setmaxregister_decrease(plan.producer_registers)
            if warp == first_producer:
                expert_producer.load_operands(
                    plan,
                    (load_a, coords_a, shared_a),
                    (load_b, coords_b, shared_b),
                    (full, empty),
                    tables,
                    experts,
                    walk,
                    job,
                )
            if cutlass.const_expr(plan.grouped):
                if warp > first_producer and warp <= first_producer + plan.scale_warps:
                    expert_producer.load_scales(
                        plan,
                        scales,
                        storage.scales.data_ptr(),
                        (full, empty),
                        tables,
                        experts,
                        vectors,
                        walk,
                        job,
                        block_of,
                    )
        else:
            if cutlass.const_expr(plan.moves_registers):
                cute.arch.setmaxregister_increase(plan.consumer_registers)
            expert_consumer.consume(
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
                (full, empty, turn),
                (store_d, coords_d, d, ldd),
                tables,
                experts,
                ending,
                vectors,
                walk,
                job,
            )
