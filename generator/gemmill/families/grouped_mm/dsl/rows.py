"""Storing the rows of a tile that are one expert's: by TMA where all of them are, else by each thread's own stores."""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from gemmill.gemm import epilogue
from gemmill.gemm.limits import SLAB
from gemmill.gemm.packed import Packed

CHUNK = 8
"""Elements of D in one store of 16 bytes."""


@dataclass
class Kept(Packed):
    """Where D lies, and which of its rows a tile may write."""

    d: cute.Pointer
    ldd: Int64
    n: Int32
    begin: Int32
    end: Int32


@cute.jit
def store(plan: cutlass.Constexpr, sums: list, held: tuple, target: tuple, place: tuple, origin: tuple, kept: Kept):
    """Stores a group's sums in boxes of 64 rows of X by `store_columns` rows of Y."""
    shared, vectors, copies = target
    _, thread = place
    boxes = epilogue.boxes_of(plan)
    if cutlass.const_expr(not plan.meets_end):
        epilogue.share(plan, held, vectors, place)
    if cutlass.const_expr(plan.stores_early):
        epilogue.write_slab(plan, sums, target, thread, plan.slabs - 1)
        send(plan, target, place, origin, boxes, kept)
    else:
        for first in cutlass.range_constexpr(0, len(boxes), plan.store_buffers):
            together = boxes[first : first + plan.store_buffers]
            if cutlass.const_expr(first > 0):
                epilogue.wait_for_buffers(place)
            for i in cutlass.range_constexpr(len(together)):
                epilogue.write_box(plan, sums, vectors, shared[None, None, i], copies[0], thread, together[i])
            send(plan, target, place, origin, together, kept)


@cute.jit
def send(plan: cutlass.Constexpr, target: tuple, place: tuple, origin: tuple, together: cutlass.Constexpr, kept: Kept):
    """Stores the boxes that the group has written."""
    m0 = origin[1] if cutlass.const_expr(plan.swap_ab) else origin[0]
    if m0 >= kept.begin and m0 + plan.group_m <= kept.end:
        epilogue.send(plan, target, place, origin, together)
    else:
        group, thread = place
        cute.arch.barrier(barrier_id=1 + group, number_of_threads=128)
        for buffer in cutlass.range_constexpr(len(together)):
            copy_box(plan, target[0][None, None, buffer], thread, origin, together[buffer], kept)


@cute.jit
def copy_box(
    plan: cutlass.Constexpr, box: cute.Tensor, thread: Int32, origin: tuple, place: cutlass.Constexpr, kept: Kept
):
    """Each thread stores chunks of a box whose rows are kept.

    The box's swizzle is undone by hand: the places of chunks differ from one 128 bytes to the next, by their number.
    """
    column, slab = place
    m0, n0 = origin[0] + slab * SLAB, origin[1] + column * plan.store_columns
    rows, chunks = SLAB, plan.store_columns // CHUNK
    if cutlass.const_expr(plan.swap_ab):
        m0, n0 = origin[1] + column * plan.store_columns, origin[0] + slab * SLAB
        rows, chunks = plan.store_columns, SLAB // CHUNK
    for i in cutlass.range_constexpr((rows * chunks + 127) // 128):
        at = thread + 128 * i
        m, n = m0 + at // chunks, n0 + at % chunks * CHUNK
        if at < rows * chunks and m >= kept.begin and m < kept.end and n < kept.n:
            offset = 16 * at
            offset = offset ^ ((offset >> 7 & chunks - 1) << 4)
            cute.arch.inline_ptx(
                "{\n.reg .b32 w0, w1, w2, w3;\n"
                "ld.shared.v4.b32 {w0, w1, w2, w3}, [{$r0}];\n"
                "st.global.v4.b32 [{$r1}], {w0, w1, w2, w3};\n}",
                read_only_args=[box.iterator.toint() + offset, (kept.d + (Int64(m) * kept.ldd + n)).toint()],
            )
