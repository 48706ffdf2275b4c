"""The consumer groups: each multiplies and stores its part of every tile or, in pingpong, every second tile."""

# mypy: ignore-errors
from functools import partial

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import warp as warp_ops

from gemmill.families.moe.dsl import rows
from gemmill.gemm import epilogue, gather, mainloop
from gemmill.gemm.consumer import make_loop, make_mma
from gemmill.gemm.experts import Experts, Walk, expert_of, tile_at
from gemmill.gemm.limits import SLAB
from gemmill.gemm.pipeline import GroupOrder, Pipeline
from gemmill.gemm.walk import Job


@cute.jit
def consume(
    plan: cutlass.Constexpr,
    shared: tuple,
    pipeline: Pipeline,
    order: GroupOrder,
    output: tuple,
    tables: cutlass.Constexpr,
    experts: Experts,
    tokens: gather.Tokens,
    vectors,
    walk: Walk,
    job: Job,
):
    """Cooperative groups share a tile; in pingpong a group multiplies while the other stores."""
    shared_x, shared_y, shared_d, shared_scales, shared_vectors = shared
    store_d, coords_d, d, ldd = output
    group = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // 128)
    thread = cute.arch.thread_idx()[0] % 128
    part, alternating = group, 0
    if cutlass.const_expr(plan.pingpong):
        part, alternating = Int32(0), 1

    loop = make_loop(plan, shared_x, shared_y, shared_scales, pipeline, part)
    own_d = cute.local_tile(shared_d, (SLAB, plan.store_columns, plan.store_buffers), (0, 0, group))
    to_shared = cute.make_tiled_copy_C(
        cute.make_copy_atom(warp_ops.StMatrix8x8x16bOp(plan.swap_ab, 4), shared_d.element_type),
        make_mma(plan, plan.store_columns),
    )
    own_vectors = epilogue.vectors_of(plan, shared_vectors + group * plan.vector_words)
    store = (own_d, own_vectors, (to_shared, store_d, coords_d))

    tile, done = job.first + alternating * group * job.step, alternating * group * job.k_steps
    expert, phase = Int32(0), Int32(0)
    while tile < tables.first[experts.count]:
        expert = expert_of(tables, experts, tile, expert)
        m0, at_n, begin, end = tile_at(plan, tables, walk, tile, expert)
        n0 = at_n * plan.tile_n
        x0, y0 = m0 + part * plan.group_rows, n0
        if cutlass.const_expr(plan.swap_ab):
            x0, y0 = n0 + part * plan.group_rows, m0
        held = ([], [])
        if cutlass.const_expr(plan.scaled):
            held = gather.fetch(plan, vectors.of_expert(experts.weights_of(expert)), tokens, thread, (x0, y0))
        following = None
        if cutlass.const_expr(plan.pingpong):
            order.wait(group, phase)
            following = order.after(group)
        meanwhile = partial(epilogue.begin, plan, loop.sums, held, store, (group, thread))
        mainloop.accumulate(plan, loop, done, job.k_steps, (part, thread, n0), following, meanwhile)
        kept = rows.Kept(d, ldd, vectors.n, begin, end)
        rows.store(plan, loop.sums, held, store, (group, thread), (x0, y0), kept)
        tile, phase = tile + (1 + alternating) * job.step, phase ^ 1
        done = done + (1 + alternating) * job.k_steps
    if thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)
