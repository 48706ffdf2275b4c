"""The consumer groups: which tiles each multiplies and stores, and what overlaps with what.

Cooperative groups share a tile; in pingpong a group multiplies while the other stores.
"""

# mypy: ignore-errors
from functools import partial

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.cute.nvgpu import warp as warp_ops

from gemmill.gemm import epilogue, mainloop, parallel
from gemmill.gemm.elements import ELEMENT_OF
from gemmill.gemm.limits import SLAB
from gemmill.gemm.pipeline import GroupOrder, Pipeline
from gemmill.gemm.plan import Plan
from gemmill.gemm.walk import Job, Walk, rows_back, tile_of
from gemmill.vocab import DType


@cute.jit
def consume(
    plan: cutlass.Constexpr,
    shared: tuple,
    pipeline: Pipeline,
    order: GroupOrder,
    output: tuple,
    vectors,
    walk: Walk,
    job: Job,
    meeting: tuple,
):
    """Each group multiplies and stores its part of every tile or, in pingpong, every second tile."""
    shared_x, shared_y, shared_d, shared_scales, shared_vectors, partial_sums = shared
    store_d, coords_d = output
    group = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // 128)
    thread = cute.arch.thread_idx()[0] % 128
    part = Int32(0) if plan.pingpong else group

    loop = make_loop(plan, shared_x, shared_y, shared_scales, pipeline, part)
    own_d = cute.local_tile(shared_d, (SLAB, plan.store_columns, plan.store_buffers), (0, 0, group))
    to_shared = cute.make_tiled_copy_C(
        cute.make_copy_atom(warp_ops.StMatrix8x8x16bOp(plan.swap_ab, 4), shared_d.element_type),
        make_mma(plan, plan.store_columns),
    )
    own_vectors = epilogue.vectors_of(plan, shared_vectors + group * plan.vector_words, vectors.scalars)
    store = (own_d, own_vectors, (to_shared, store_d, coords_d))
    cute.arch.griddepcontrol_wait()
    if cutlass.const_expr(plan.split_k):
        _, _, n0 = origin(plan, walk, job.first, part, vectors.m)
        mainloop.accumulate(plan, loop, Int32(0), job.k_steps, (part, thread, n0), None, None)
        epilogue.park(plan, loop.sums, partial_sums, (group, thread))
    elif cutlass.const_expr(plan.split_k_parallel):
        x0, y0, n0 = origin(plan, walk, job.first, part, vectors.m)
        mainloop.accumulate(plan, loop, Int32(0), job.k_steps, (part, thread, n0), None, None)
        tile, tiles = job.first, walk.tiles()
        if cutlass.const_expr(plan.cluster_size > 1):
            tile = tile * plan.cluster_size + cute.arch.block_idx_in_cluster()
            tiles = tiles * plan.cluster_size
        parallel.exchange(plan, loop.sums, vectors, meeting, (tile, tiles), (group, thread), (x0, y0))
    elif cutlass.const_expr(plan.pingpong):
        alternate(plan, loop, store, order, vectors, walk, job, (group, thread))
    else:
        tile, done = job.first, Int32(0)
        while tile < walk.tiles():
            x0, y0, n0 = origin(plan, walk, tile, part, vectors.m)
            held = epilogue.fetch(plan, vectors, thread, (x0, y0))
            if cutlass.const_expr(plan.restarts):
                mainloop.accumulate_slices(plan, loop, done, job.k_steps, meeting[-1], (part, thread, n0))
            else:
                begin = partial(epilogue.begin, plan, loop.sums, held, store, (group, thread))
                mainloop.accumulate(plan, loop, done, job.k_steps, (part, thread, n0), None, begin)
            epilogue.store(plan, loop.sums, held, store, (group, thread), (x0, y0))
            tile, done = tile + job.step, done + job.k_steps
    if thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.jit
def origin(plan: cutlass.Constexpr, walk: Walk, tile: Int32, part: Int32, m: Int32):
    """(x, y) where a group's part of a tile begins, and the tile's first column of B."""
    at_x, at_y = tile_of(plan, walk, tile)
    x0, y0 = at_x * plan.tile_x, at_y * plan.tile_y
    if cutlass.const_expr(plan.swap_ab):
        y0 = y0 - rows_back(plan, at_y, m)
    else:
        x0 = x0 - rows_back(plan, at_x, m)
    return x0 + part * plan.group_rows, y0, x0 if plan.swap_ab else y0


@cute.jit
def alternate(
    plan: cutlass.Constexpr, loop, store: tuple, order: GroupOrder, vectors, walk: Walk, job: Job, place: tuple
):
    """Pingpong: a group multiplies its tile while the other stores the one before."""
    group, thread = place
    tile, done, phase = job.first + group * job.step, group * job.k_steps, Int32(0)
    while tile < walk.tiles():
        x0, y0, n0 = origin(plan, walk, tile, Int32(0), vectors.m)
        held = epilogue.fetch(plan, vectors, thread, (x0, y0))
        order.wait(group, phase)
        begin = partial(epilogue.begin, plan, loop.sums, held, store, place)
        mainloop.accumulate(plan, loop, done, job.k_steps, (Int32(0), thread, n0), order.after(group), begin)
        epilogue.store(plan, loop.sums, held, store, (group, thread), (x0, y0))
        tile, done, phase = tile + 2 * job.step, done + 2 * job.k_steps, phase ^ 1


def make_loop(
    plan: Plan,
    shared_x: cute.Tensor,
    shared_y: cute.Tensor,
    shared_scales: cute.Pointer,
    pipeline: Pipeline,
    part: Int32,
) -> mainloop.Mainloop:
    """Fragments, sums and scales of one consumer group."""
    replacing, adding = make_mma(plan, plan.tile_y), make_mma(plan, plan.tile_y)
    replacing.set(warpgroup.Field.ACCUMULATE, False)
    adding.set(warpgroup.Field.ACCUMULATE, True)
    thread_mma = adding.get_slice(0)
    slabs_x = [
        cute.local_tile(shared_x, (SLAB, plan.tile_k, plan.stages), (part * plan.slabs + slab, 0, 0))
        for slab in range(plan.slabs)
    ]
    of_sums, of_partials = ELEMENT_OF[plan.sum_dtype], ELEMENT_OF[plan.accumulator_dtype]
    shape = adding.partition_shape_C((SLAB, plan.tile_y))
    scales_of_group = plan.scales // plan.promotions
    return mainloop.Mainloop(
        mmas=(replacing, adding),
        operands=(
            [adding.make_fragment_A(thread_mma.partition_A(slab)) for slab in slabs_x],
            adding.make_fragment_B(thread_mma.partition_B(shared_y)),
        ),
        pipeline=pipeline,
        scales=cute.make_tensor(
            shared_scales,
            cute.make_layout(
                (max(scales_of_group, 1), plan.promotions, plan.stages), stride=(1, scales_of_group, plan.scales)
            ),
        ),
        sums=[cute.make_rmem_tensor(shape, of_sums) for _ in range(plan.slabs)],
        partials=[cute.make_rmem_tensor(shape, of_partials) for _ in range(plan.partials)],
        factors=[cute.make_rmem_tensor(plan.factors, Float32) for _ in range(plan.factor_sets)],
    )


def make_mma(plan: Plan, columns: int) -> cute.TiledMma:
    """One consumer group's WGMMA."""
    shape = (SLAB, columns)
    x, y, kind = ELEMENT_OF[plan.x_dtype], ELEMENT_OF[plan.y_dtype], ELEMENT_OF[plan.accumulator_dtype]
    k, source = OperandMajorMode.K, warpgroup.OperandSource.SMEM
    if plan.x_dtype is DType.S8:
        op = warpgroup.MmaI8Op(x, y, kind, shape, source, k, k)
    elif plan.x_dtype.bits == 8:
        op = warpgroup.MmaF8Op(x, y, kind, shape, source, k, k)
    else:
        op = warpgroup.MmaF16BF16Op(x, kind, shape, source, k, k)
    return cute.make_tiled_mma(cute.make_mma_atom(op))
