"""D[m, n] = epilogue(A[m, k] B[k, n]) on Hopper: one producer warp with TMA, one or two consumer groups with WGMMA.

Read in the order in which the machine works. First come `facts.py` (the facts of compilation), and here the call. Then
follow the kernel (`kernel.py`), `producer.py`, `consumer.py`, and the consumers' `mainloop.py` and `epilogue.py`.
"""

# mypy: ignore-errors
from dataclasses import dataclass
from functools import partial

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

    header, struct = "scaled_mm/abi.h", "gemmill_scaled_mm_args"

    def __init__(self, config: KernelConfig) -> None:
        super().__init__(Plan(config), ELEMENT_OF[config.out_dtype])

    # The call --------------------------------------------------------------------------------------------------------

    def vectors_of(self, x) -> tuple:
        """What the epilogue reads of a call, and its scales in groups."""
        vectors = epilogue.vectors_of_call(x, x.m, bias=x.bias, azp_adj=x.azp_adj, azp=x.azp)
        return vectors, producer.group_scales_of(x)

    def enqueue(self, x) -> None:
        """Enqueues one GEMM, of a `gemmill_scaled_mm_args`."""
        vectors, scales = self.vectors_of(x)
        plan = self.plan
        tensor_a, tensor_b = self.operand(x.a, (x.m, x.k), x.lda), self.operand(x.b, (x.n, x.k), x.ldb)
        d_shape, d_stride = (x.m, x.n), (cute.assume(x.ldd, divby=8), 1)
        if plan.swap_ab:
            d_shape, d_stride = d_shape[::-1], d_stride[::-1]
        tensor_d = cute.make_tensor(x.d, cute.make_layout(d_shape, stride=d_stride))
        layouts = self.layouts(boxes_of_fragments(plan, self.out_type))
        loads = self.loads(tensor_a, tensor_b, layouts)
        if plan.box_rows:
            loads = (*loads, self._load_box(tensor_a, layouts.y))
        store = self.store(tensor_d, layouts.d, (SLAB, plan.store_columns))

        tiles_x, tiles_y = self.tiles_along(x.m, x.n)
        if plan.split_k:
            grid, cluster, slices = tiles_x * tiles_y * x.splits, x.splits, x.splits
        elif plan.split_k_parallel:
            cluster = plan.cluster_size
            slices = cutlass.max(1, cutlass.min(x.splits, cute.ceil_div(x.k, plan.slice_step)))  # none is empty
            grid = tiles_x * tiles_y * slices * cluster
        else:
            cluster = plan.cluster_size
            slices = x.splits if plan.restarts else cluster
            grid = self.clusters(tiles_x, tiles_y, x.sm_count) * cluster
        tiles = Tiles(walk_over(tiles_x, tiles_y, x.raster_order, x.swizzle), x.constant_weights)
        target = Target(x.d, x.ldd, cute.fast_divmod_create_divisor_v2(slices), x.workspace, x.ticket)
        how = (x.programmatic_launch, x.stream)
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
