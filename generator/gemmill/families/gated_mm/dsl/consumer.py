"""The consumer groups: each multiplies and ends its part of every tile or, in pingpong, every second tile."""

# mypy: ignore-errors
from functools import partial

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from gemmill.families.gated_mm.dsl.ending import Ending, store
from gemmill.gemm import epilogue, mainloop
from gemmill.gemm.consumer import make_loop, origin
from gemmill.gemm.pipeline import GroupOrder, Pipeline
from gemmill.gemm.walk import Job, Walk


@cute.jit
def consume(
    plan: cutlass.Constexpr,
    shared: tuple,
    pipeline: Pipeline,
    order: GroupOrder,
    output: tuple,
    ending: Ending,
    vectors,
    walk: Walk,
    job: Job,
):
    """Multiply and end this group's tiles.

    Cooperative groups share a tile. In pingpong a group multiplies while the other ends the tile before.
    """
    shared_x, shared_y, shared_d, boxes, maxima, shared_vectors, shared_scales = shared
    store_d, coords_d = output
    group = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // 128)
    thread = cute.arch.thread_idx()[0] % 128
    part, alternating = group, 0
    if cutlass.const_expr(plan.pingpong):
        part, alternating = Int32(0), 1

    loop = make_loop(plan, shared_x, shared_y, shared_scales, pipeline, part)
    own_d = cute.local_tile(shared_d, (plan.store_rows, plan.store_columns, plan.store_buffers), (0, 0, group))
    own_boxes = boxes + group * (plan.store_elements // plan.consumer_groups)
    own_vectors = epilogue.vectors_of(plan, shared_vectors + group * plan.vector_words)
    target = (own_boxes, own_vectors, (own_d, store_d, coords_d), maxima)
    cute.arch.griddepcontrol_wait()

    tile, done = job.first + alternating * group * job.step, alternating * group * job.k_steps
    phase = Int32(0)
    while tile < walk.tiles():
        x0, y0, n0 = origin(plan, walk, tile, part, vectors.m)
        held = epilogue.fetch(plan, vectors, thread, (x0, y0))
        following = None
        if cutlass.const_expr(plan.pingpong):
            order.wait(group, phase)
            following = order.after(group)
        meanwhile = partial(epilogue.begin, plan, loop.sums, held, target, (group, thread))
        mainloop.accumulate(plan, loop, done, job.k_steps, (part, thread, n0), following, meanwhile)
        store(plan, loop.sums, held, target, ending, vectors.m, (group, thread), (x0, y0), phase)
        tile, phase = tile + (1 + alternating) * job.step, phase ^ 1
        done = done + (1 + alternating) * job.k_steps
    if thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)
