"""A kernel of rows that belong to experts, whatever becomes of its sums: one launch for all experts.

Read in the order in which the machine works: here the launch, shared memory and barriers. Then follow `experts.py`,
`expert_producer.py` and, where rows are found by their numbers, `gather.py`. What consumers do is a family's own.
"""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup

from gemmill.gemm import expert_producer as producer
from gemmill.gemm import gather
from gemmill.gemm.elements import ELEMENT_OF
from gemmill.gemm.experts import BAND, Experts, Tables, Vectors, Walk, fill
from gemmill.gemm.pipeline import GroupOrder, Pipeline
from gemmill.gemm.walk import Job


@dataclass(frozen=True)
class Operands:
    """Operands and sizes of one call. Strides are in elements."""

    a: cute.Pointer
    """[tokens, k]"""
    b: cute.Pointer
    """[weights, n, k]"""
    d: cute.Pointer
    lda: Int64
    ldb: Int64
    ldd: Int64
    b_stride_expert: Int64
    m: Int32
    """Rows of D."""
    n: Int32
    """Columns of the product."""
    k: Int32
    tokens: Int32
    """Rows of A."""
    weights: Int32


@cute.jit
def most_tiles(plan: cutlass.Constexpr, m: Int32, experts: Int32, slot: Int32):
    """Tiles of rows that experts can have at most."""
    tiles = m // plan.tile_m + cutlass.min(m, experts)  # of segments that follow one another
    if slot != 0:
        tiles = cute.ceil_div(slot, plan.tile_m) * experts
    return tiles


class ExpertMm:
    """One kernel, and what enqueues it. A family says what D is and what consumers do."""

    of_column = None
    """Which scale in groups a column has, where columns are in an order of their own."""

    def __init__(self, plan, out_type: type) -> None:
        self.plan, self.out_type = plan, out_type
        self.x_type = ELEMENT_OF[plan.x_dtype]
        self.y_type = ELEMENT_OF[plan.y_dtype]

    # What families say -----------------------------------------------------------------------------------------------

    def stored(self, x: Operands) -> tuple:
        """D as a tensor, the layout of its boxes in shared memory, and a box's shape."""
        raise NotImplementedError

    def own_storage(self) -> dict:
        """Shared memory of the consumers' own, by name."""
        return {}

    def consume(
        self, storage, shared, pipeline, order, output, tables, experts, tokens, ending, vectors, walk, job
    ):  # the same arguments for all
        """What the consumer groups do."""
        raise NotImplementedError

    # The launch ------------------------------------------------------------------------------------------------------

    def aligned(self, *strides: Int64) -> list:
        """Strides of operands, of rows that begin at multiples of 16 bytes."""
        return [cute.assume(stride, divby=128 // self.plan.x_dtype.bits) for stride in strides]

    def enqueue(
        self,
        x: Operands,
        vectors: Vectors,
        scales: producer.GroupScales,
        ending,
        experts: Experts,
        tokens,
        how: tuple,
    ) -> None:
        """Enqueues one call. `ending` is what the family's consumers read besides, `how` multiprocessors, whether the launch
        may overlap the one before, and the stream."""
        plan, (sm_count, programmatic_launch, stream) = self.plan, how
        tensor_a = cute.make_tensor(x.a, cute.make_layout((x.tokens, x.k), stride=(x.lda, 1)))
        tensor_b = cute.make_tensor(x.b, cute.make_layout((x.n, x.k, x.weights), stride=(x.ldb, 1, x.b_stride_expert)))
        tensor_d, layout_d, box = self.stored(x)

        layout_x, layout_y = self._stage_layout(self.x_type, plan.tile_x), self._stage_layout(self.y_type, plan.tile_y)
        layout_a, layout_b = (layout_y, layout_x) if plan.swap_ab else (layout_x, layout_y)
        load_b, coords_b = self._load_atom(tensor_b, layout_b, plan.tile_n, 1)
        load_a, coords_a = load_b, coords_b  # in vain, where rows are gathered
        if not plan.indexed:
            load_a, coords_a = self._load_atom(tensor_a, layout_a, plan.tile_m, plan.cluster_size)
        store_d, coords_d = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), tensor_d, cute.slice_(layout_d, (None, None, 0)), box
        )

        tiles_n = cute.ceil_div(x.n, plan.tile_n * plan.cluster_size)
        tiles = most_tiles(plan, x.m, experts.count, experts.slot) * tiles_n
        clusters = cutlass.min(sm_count * plan.ctas_of_sm // plan.cluster_size, tiles)
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
            vectors,
            scales,
            ending,
            experts,
            tokens,
            Walk(tiles_n, cute.fast_divmod_create_divisor_v2(BAND * tiles_n)),
            x.d,
            x.ldd,
        ).launch(
            grid=(clusters * plan.cluster_size, 1, 1),
            block=(plan.threads, 1, 1),
            cluster=(plan.cluster_size, 1, 1),
            min_blocks_per_mp=plan.ctas_of_sm,
            preferred_smem_carveout=100,  # left open, the DSL would ask a driver
            use_pdl=programmatic_launch,
            stream=stream,
        )

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

    def _shared_storage(self, layout_x: cute.ComposedLayout, layout_y: cute.ComposedLayout):
        plan, range_of, aligned = self.plan, cute.struct.MemRange, cute.struct.Align
        fields = {
            "full": range_of[Int64, plan.stages],
            "empty": range_of[Int64, plan.stages],
            "turn": range_of[Int64, 2],
            "first": range_of[Int32, plan.most_experts + 1],
            "begin": range_of[Int32, plan.most_experts],
            "end": range_of[Int32, plan.most_experts],
            "warps": range_of[Int32, plan.threads // 32],
            "x": aligned[range_of[self.x_type, cute.cosize(layout_x)], 1024],
            "y": aligned[range_of[self.y_type, cute.cosize(layout_y)], 1024],
            "d": aligned[range_of[self.out_type, max(plan.store_elements, 8)], 1024],
            "vectors": range_of[Float32, max(plan.consumer_groups * plan.vector_words, 4)],
            **self.own_storage(),
            "scales": aligned[range_of[Float32, max(plan.stages * plan.scales, 4)], 16],
        }
        return cute.struct(type("SharedStorage", (), {"__annotations__": fields}))

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
        ending,
        experts: Experts,
        tokens,
        walk: Walk,
        d: cute.Pointer,
        ldd: Int64,
    ):
        plan = self.plan
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        first_producer = plan.consumers // 32

        # Shared memory
        storage = cutlass.utils.SmemAllocator().allocate(self._shared_storage(layout_x, layout_y))
        shared_x = storage.x.get_tensor(layout_x.outer, swizzle=layout_x.inner)
        shared_y = storage.y.get_tensor(layout_y.outer, swizzle=layout_y.inner)
        shared_d = storage.d.get_tensor(layout_d.outer, swizzle=layout_d.inner)
        shared_a, shared_b = (shared_y, shared_x) if cutlass.const_expr(plan.swap_ab) else (shared_x, shared_y)
        bytes_a = storage.y.data_ptr().toint() if cutlass.const_expr(plan.swap_ab) else storage.x.data_ptr().toint()
        pipeline = Pipeline(plan, storage.full.data_ptr(), storage.empty.data_ptr())
        order = GroupOrder(storage.turn.data_ptr())
        parts = (storage.first, storage.begin, storage.end, storage.warps)
        sizes = (plan.most_experts + 1, plan.most_experts, plan.most_experts, plan.threads // 32)
        tables = Tables(*(part.get_tensor(cute.make_layout(size)) for part, size in zip(parts, sizes, strict=True)))

        # Barriers
        if warp == first_producer:
            cpasync.prefetch_descriptor(load_a)
            cpasync.prefetch_descriptor(load_b)
            cpasync.prefetch_descriptor(store_d)
            with cute.arch.elect_one():
                pipeline.init()
                order.init()
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
                    pipeline,
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
                        pipeline,
                        tables,
                        experts,
                        vectors,
                        walk,
                        job,
                        self.of_column,
                    )
            elif cutlass.const_expr(plan.grouped):
                if warp > first_producer and warp <= first_producer + plan.scale_warps:
                    producer.load_scales(
                        plan,
                        scales,
                        storage.scales.data_ptr(),
                        pipeline,
                        tables,
                        experts,
                        vectors,
                        walk,
                        job,
                        self.of_column,
                    )
        else:
            if cutlass.const_expr(plan.moves_registers):
                cute.arch.setmaxregister_increase(plan.consumer_registers)
            self.consume(
                storage,
                (shared_x, shared_y, shared_d),
                pipeline,
                order,
                (store_d, coords_d, d, ldd),
                tables,
                experts,
                tokens,
                ending,
                vectors,
                walk,
                job,
            )
        if cutlass.const_expr(plan.cluster_size > 1):  # nobody leaves while others still signal its barriers
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
