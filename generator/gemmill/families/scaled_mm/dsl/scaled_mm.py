"""D[m, n] = epilogue(A[m, k] B[k, n]) on Hopper: one producer warp with TMA, one or two consumer groups with WGMMA.

Read in the order in which the machine works. First come `facts.py` (the facts of compilation), and here the call. Then
follow the kernel (`kernel.py`), `producer.py`, `consumer.py`, and the consumers' `mainloop.py` and `epilogue.py`.
"""

# mypy: ignore-errors
from dataclasses import dataclass
from functools import partial

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.cute.nvgpu import cpasync

from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.families.scaled_mm.dsl.plan import Plan
from gemmill.gemm import consumer, epilogue, mainloop, parallel, producer
from gemmill.gemm.dense_mm import DenseMm
from gemmill.gemm.elements import ELEMENT_OF
from gemmill.gemm.kernel import Shared, Tma, boxes_of_fragments
from gemmill.gemm.limits import SLAB
from gemmill.gemm.packed import Packed
from gemmill.gemm.pipeline import GroupOrder, Pipeline
from gemmill.gemm.walk import Tiles, WorkTile, walk_over


@dataclass
class Target(Packed):
    """Where D lies, and where slices of K meet."""

    d: cute.Pointer
    ldd: Int64
    slices: cute.FastDivmodDivisorV2
    workspace: cute.Pointer
    ticket: Int64


class ScaledMm(DenseMm):
    """One kernel, and the function that launches it. Raises ValueError for a config that it cannot be made of."""

    def __init__(self, config: KernelConfig) -> None:
        super().__init__(Plan(config), ELEMENT_OF[config.out_dtype])

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
        tensor_a, tensor_b = self.operand(a, (m, k), lda), self.operand(b, (n, k), ldb)
        d_shape, d_stride = (m, n), (cute.assume(ldd, divby=8), 1)
        if cutlass.const_expr(plan.swap_ab):
            d_shape, d_stride = d_shape[::-1], d_stride[::-1]
        tensor_d = cute.make_tensor(d, cute.make_layout(d_shape, stride=d_stride))
        layouts = self.layouts(boxes_of_fragments(plan, self.out_type))
        loads = self.loads(tensor_a, tensor_b, layouts)
        if cutlass.const_expr(plan.box_rows):
            loads = (*loads, self._load_box(tensor_a, layouts.y))
        store = self.store(tensor_d, layouts.d, (SLAB, plan.store_columns))

        tiles_x, tiles_y = self.tiles_along(m, n)
        if cutlass.const_expr(plan.split_k):
            grid, cluster, slices = tiles_x * tiles_y * splits, splits, splits
        elif cutlass.const_expr(plan.split_k_parallel):
            cluster = plan.cluster_size
            slices = cutlass.max(1, cutlass.min(splits, cute.ceil_div(k, plan.slice_step)))  # none is empty
            grid = tiles_x * tiles_y * slices * cluster
        else:
            cluster = plan.cluster_size
            slices = splits if plan.restarts else cluster
            grid = self.clusters(tiles_x, tiles_y, sm_count) * cluster
        tiles = Tiles(walk_over(tiles_x, tiles_y, raster_order, swizzle), constant_weights)
        target = Target(d, ldd, cute.fast_divmod_create_divisor_v2(slices), workspace, ticket)
        how = (programmatic_launch, stream)
        self.launch(loads, store, layouts, vectors, scales, None, tiles, target, grid, cluster, how)

    def _load_box(self, tensor: cute.Tensor, layout: cute.ComposedLayout) -> Tma:
        """TMA that loads a box of rows to its place in a stage of Y."""
        plan = self.plan
        line = 1024 // plan.y_dtype.bits  # elements of 128 bytes; of a stage all rows have one, then all the next
        strides = (line, (1, line * plan.tile_y))
        box = cute.make_layout((plan.box_rows, (line, plan.tile_k // line)), stride=strides)
        stage, op = cute.make_composed_layout(layout.inner, 0, box), cpasync.CopyBulkTensorTileG2SOp()
        return Tma(*cpasync.make_tiled_tma_atom(op, tensor, stage, (plan.box_rows, plan.tile_k)))

    # The consumers ---------------------------------------------------------------------------------------------------

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
        target: Target,
    ):
        """Each group multiplies its part of a tile or of a slice, and stores it or hands it to the other CTAs."""
        plan, job = self.plan, tiles.job
        place = group, thread = consumer.place_of()
        part = Int32(0) if plan.pingpong else group
        loop = consumer.make_loop(plan, shared, pipeline, place)
        to = consumer.boxes(plan, shared, store, place, vectors.scalars)
        cute.arch.griddepcontrol_wait()
        if cutlass.const_expr(plan.divides_k):
            work = tiles.work(job.first, 0, part, vectors.m)
            mainloop.accumulate(plan, loop, Int32(0), job.k_steps, (part, thread, work.n0), None, None)
            if cutlass.const_expr(plan.split_k):
                epilogue.park(plan, loop.sums, self._partial_sums(shared), place)
            else:
                parallel.exchange(plan, loop.sums, vectors, target, tiles, place, (work.x0, work.y0))
        elif cutlass.const_expr(plan.pingpong):
            alternate(plan, loop, order, tiles, vectors, to, place)
        else:

            def end(work: WorkTile, held: tuple, phase: Int32):
                epilogue.store(plan, loop.sums, held, to, place, (work.x0, work.y0))

            consumer.consume(plan, loop, order, tiles, vectors, to, place, end, target.slices.divisor)
        if thread < 32:
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    def reduce(self, shared: Shared, tiles: Tiles, vectors, target: Target):
        """The CTAs of a cluster add up the slices of their tile."""
        plan, thread = self.plan, cute.arch.thread_idx()[0]
        work = tiles.work(tiles.job.first, 0, Int32(0), vectors.m)
        place = (thread, tiles.job.slice, target.slices.divisor)
        epilogue.meet(plan, self._partial_sums(shared), vectors, target.d, target.ldd, place, (work.x0, work.y0))

    def _partial_sums(self, shared: Shared) -> cute.Pointer:
        """Where CTAs of a cluster have the sums of their slices, in place of stages."""
        return cute.recast_ptr(shared.storage.x.data_ptr(), dtype=ELEMENT_OF[self.plan.sum_dtype])


@cute.jit
def alternate(
    plan: cutlass.Constexpr,
    loop: cutlass.Constexpr,
    order: GroupOrder,
    tiles: Tiles,
    vectors,
    to: cutlass.Constexpr,
    place: tuple,
):
    """Pingpong: a group multiplies its tile while the other stores the one before."""
    group, thread = place
    k_steps = tiles.job.k_steps
    tile, done, phase = tiles.first(group), group * k_steps, Int32(0)
    while tiles.has(tile):
        work = tiles.work(tile, 0, Int32(0), vectors.m)
        held = epilogue.fetch(plan, vectors, thread, (work.x0, work.y0))
        order.wait(group, phase)
        begin = partial(epilogue.begin, plan, loop.sums, held, to, place)
        mainloop.accumulate(plan, loop, done, k_steps, (Int32(0), thread, work.n0), order.after(group), begin)
        epilogue.store(plan, loop.sums, held, to, place, (work.x0, work.y0))
        tile, done, phase = tiles.after(tile, 2), done + 2 * k_steps, phase ^ 1
