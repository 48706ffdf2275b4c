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

from gemmill.gemm import epilogue, mainloop
from gemmill.gemm.elements import ELEMENT_OF
from gemmill.gemm.limits import SLAB
from gemmill.gemm.pipeline import GroupOrder, Pipeline
from gemmill.gemm.plan import Plan
from gemmill.vocab import DType


@cute.jit
def consume(
    plan: cutlass.Constexpr,
    loop: cutlass.Constexpr,
    order: GroupOrder,
    tiles,
    vectors,
    target: cutlass.Constexpr,
    place: tuple,
    store: cutlass.Constexpr,
    slices=None,
):
    """Multiplies and stores a group's part of every tile or, in pingpong, of every second tile.

    `target` is where the epilogue works, with its vectors second; `store` ends a tile: it takes the tile's part, the
    values that the threads fetched for it, and a bit that alternates from tile to tile.
    """
    group, thread = place
    part, alternating = group, 0
    if cutlass.const_expr(plan.pingpong):
        part, alternating = Int32(0), 1
    k_steps = tiles.job.k_steps
    tile, done = tiles.first(alternating * group), alternating * group * k_steps
    expert, phase = Int32(0), Int32(0)
    while tiles.has(tile):
        expert = tiles.expert_of(tile, expert)
        work = tiles.work(tile, expert, part, vectors.m)
        held = ([], [])
        if cutlass.const_expr(len(plan.m_fields) + len(plan.n_fields) > 0):
            held = tiles.fetch(vectors, expert, work, thread)
        following = None
        if cutlass.const_expr(plan.pingpong):
            order.wait(group, phase)
            following = order.after(group)
        if cutlass.const_expr(plan.restarts):
            mainloop.accumulate_slices(plan, loop, done, k_steps, slices, (part, thread, work.n0))
        else:
            meanwhile = partial(epilogue.begin, plan, loop.sums, held, target, place)
            mainloop.accumulate(plan, loop, done, k_steps, (part, thread, work.n0), following, meanwhile)
        store(work, held, phase)
        tile, phase = tiles.after(tile, 1 + alternating), phase ^ 1
        done = done + (1 + alternating) * k_steps


def place_of() -> tuple:
    """The consumer group of a thread, and the thread's number in it."""
    thread, _, _ = cute.arch.thread_idx()
    return cute.arch.make_warp_uniform(thread // 128), thread % 128


def boxes(plan: Plan, shared, store, place: tuple, scalars: tuple = ()) -> tuple:
    """Where an epilogue works that stores 16-bit results as WGMMA's fragments: a group's boxes, vectors, and copies."""
    group, _ = place
    own = cute.local_tile(shared.d, (SLAB, plan.store_columns, plan.store_buffers), (0, 0, group))
    to_shared = cute.make_tiled_copy_C(
        cute.make_copy_atom(warp_ops.StMatrix8x8x16bOp(plan.swap_ab, 4), shared.d.element_type),
        make_mma(plan, plan.store_columns),
    )
    return own, vectors_of(plan, shared, place, scalars), (to_shared, store.atom, store.coords)


def vectors_of(plan: Plan, shared, place: tuple, scalars: tuple = ()) -> tuple:
    """The tensors in which a group shares what its epilogue reads."""
    of_group = shared.storage.vectors.data_ptr() + place[0] * plan.vector_words
    return epilogue.vectors_of(plan, of_group, scalars)


def make_loop(plan: Plan, shared, pipeline: Pipeline, place: tuple) -> mainloop.Mainloop:
    """Fragments, sums and scales of one consumer group."""
    part = Int32(0) if plan.pingpong else place[0]
    replacing, adding = make_mma(plan, plan.tile_y), make_mma(plan, plan.tile_y)
    replacing.set(warpgroup.Field.ACCUMULATE, False)
    adding.set(warpgroup.Field.ACCUMULATE, True)
    thread_mma = adding.get_slice(0)
    slabs_x = [
        cute.local_tile(shared.x, (SLAB, plan.tile_k, plan.stages), (part * plan.slabs + slab, 0, 0))
        for slab in range(plan.slabs)
    ]
    of_sums, of_partials = ELEMENT_OF[plan.sum_dtype], ELEMENT_OF[plan.accumulator_dtype]
    shape = adding.partition_shape_C((SLAB, plan.tile_y))
    scales_of_group = plan.scales // plan.promotions
    return mainloop.Mainloop(
        mmas=(replacing, adding),
        operands=(
            [adding.make_fragment_A(thread_mma.partition_A(slab)) for slab in slabs_x],
            adding.make_fragment_B(thread_mma.partition_B(shared.y)),
        ),
        pipeline=pipeline,
        scales=cute.make_tensor(
            shared.storage.scales.data_ptr(),
            cute.make_layout(
                (max(scales_of_group, 1), plan.promotions, plan.stages), stride=(1, scales_of_group, plan.scales)
            ),
        ),
        sums=[cute.make_rmem_tensor(shape, of_sums) for _ in range(plan.slabs)],
        partials=[cute.make_rmem_tensor(shape, of_partials) for _ in range(plan.partials)],
        factors=[cute.make_rmem_tensor(plan.factors, Float32) for _ in range(plan.factor_sets)],
        before=[cute.make_rmem_tensor(shape, of_sums) for _ in range(plan.slabs if plan.sums_slices else 0)],
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
