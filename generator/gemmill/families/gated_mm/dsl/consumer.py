"""The consumer groups: each multiplies and ends its part of every tile or, in pingpong, every second tile."""

# mypy: ignore-errors
import cutlass
import cutlass.cute as cute
from cutlass import Int32

from gemmill.families.gated_mm.dsl.ending import Ending, Kept, store
from gemmill.gemm import consumer
from gemmill.gemm.kernel import Tma
from gemmill.gemm.pipeline import GroupOrder, Pipeline


@cute.jit
def consume(
    plan: cutlass.Constexpr,
    shared: cutlass.Constexpr,
    pipeline: Pipeline,
    order: GroupOrder,
    to_d: Tma,
    tiles,
    vectors,
    ending: Ending,
    target,
):
    """Multiply and end this group's tiles. `target` is where D lies, of rows that belong to experts."""
    place = group, thread = consumer.place_of()
    storage = shared.storage
    loop = consumer.make_loop(plan, shared, pipeline, place)
    own_d = cute.local_tile(shared.d, (plan.store_rows, plan.store_columns, plan.store_buffers), (0, 0, group))
    own_boxes = storage.d.data_ptr() + group * (plan.store_elements // plan.consumer_groups)
    own_vectors = consumer.vectors_of(plan, shared, place)
    to = (own_boxes, own_vectors, (own_d, to_d.atom, to_d.coords), storage.maxima.data_ptr())
    if cutlass.const_expr(not plan.by_expert):
        cute.arch.griddepcontrol_wait()

    def end(work, held: tuple, phase: Int32):
        rows = vectors.m
        if cutlass.const_expr(plan.by_expert):
            rows = Kept(target.d, target.ldd, vectors.n // 2, work.begin, work.end)
        store(plan, loop.sums, held, to, ending, rows, place, (work.x0, work.y0), phase)

    consumer.consume(plan, loop, order, tiles, vectors, to, place, end)
    if thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)
