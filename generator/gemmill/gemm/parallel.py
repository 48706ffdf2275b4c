"""Slices of K that no cluster binds: each CTA stores its sums in the workspace, and adds up a share of the tile's from all.

A slice's sums lie there as the threads of its consumer groups hold them, quad by quad; threads of the same place read them
again. Before them come flags, one for each pair of slices of a tile. A slice that has stored sets its flags to the call's
ticket; who has seen a flag sets it back, so that a CUDA graph can use the ticket again. Nothing has to be cleared before:
what the workspace held is a ticket with a probability of 2^-63.

CTAs of a tile have neighbouring numbers, and GPUs start them in that order. So those that wait for others are of one tile
at a time, and the others get room as soon as tiles before them are done.
"""

# mypy: ignore-errors
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from gemmill.gemm import epilogue
from gemmill.gemm.elements import ELEMENT_OF
from gemmill.gemm.sums import column_offset, row_offset
from gemmill.gemm.walk import Tiles

LINE = 32
"""The number of flags is a multiple of this many, so that sums begin at whole lines of 256 bytes."""
MOST_NS = 20_000_000_000
"""The longest wait, as in kernels/core/patience.cuh."""
AT_ONCE = 2
"""Pairs of quads, of 16 columns each, whose sums a thread loads together."""


@cute.jit
def flag_of(workspace: cute.Pointer, work: tuple, writer: Int32, reader: Int32) -> Int64:
    """The address of the flag by which one slice of a tile tells another that its sums are there."""
    tile, _, _, slices = work
    return workspace.toint() + 8 * ((Int64(tile) * slices + writer) * slices + reader)


@cute.jit
def sums_at(plan: cutlass.Constexpr, workspace: cute.Pointer, work: tuple, s: Int32, thread: Int32) -> cute.Pointer:
    """Where a thread's sums of one slice of the tile begin."""
    tile, tiles, _, slices = work
    flags = (Int64(tiles) * slices * slices + LINE - 1) // LINE * (2 * LINE)  # in words of 4 bytes
    at = flags + (Int64(tile) * slices + s) * (plan.tile_x * plan.tile_y) + thread * 4
    return cute.recast_ptr(workspace + at, dtype=ELEMENT_OF[plan.sum_dtype])


def quad_at(plan, sums: cute.Pointer, i: Int32) -> cute.Tensor:
    """The `i`-th four sums of a thread in the workspace."""
    return cute.make_tensor((sums + i * (plan.consumers * 4)).align(16), cute.make_layout(4))


@cute.jit
def exchange(plan: cutlass.Constexpr, sums: list, v, target, tiles: Tiles, place: tuple, origin: tuple):
    """Stores the sums of a slice, waits for those of the tile's others, and stores a share of D.

    `target` has D, the workspace, the ticket and the number of slices. Whoever adds, slices are added in the order of K.
    """
    workspace, ticket, own, slices = target.workspace, target.ticket, tiles.job.slice, target.slices.divisor
    tile, count = tiles.job.first, tiles.walk.tiles()
    if cutlass.const_expr(plan.cluster_size > 1):
        tile = tile * plan.cluster_size + cute.arch.block_idx_in_cluster()
        count = count * plan.cluster_size
    work = (tile, count, own, slices)
    group, thread_of_group = place
    x0, y0 = origin
    thread = group * 128 + thread_of_group
    quads = plan.unit_registers // 4
    mine = sums_at(plan, workspace, work, own, thread)
    for slab in cutlass.range_constexpr(plan.slabs):
        for i in cutlass.range_constexpr(quads):
            held = cute.make_tensor(sums[slab].iterator + i * 4, cute.make_layout(4))
            cute.autovec_copy(held, quad_at(plan, mine, slab * quads + i))
    cute.arch.fence_acq_rel_gpu()
    cute.arch.barrier(barrier_id=3, number_of_threads=plan.consumers)
    if thread < slices:
        tell(flag_of(workspace, work, own, thread), ticket)
        await_ticket(flag_of(workspace, work, thread, own), ticket)
    cute.arch.barrier(barrier_id=3, number_of_threads=plan.consumers)
    cute.arch.fence_acq_rel_gpu()

    pairs = quads // 2
    first, last = pairs * own // slices, pairs * (own + 1) // slices
    for slab in cutlass.range_constexpr(plan.slabs):
        rows = [x0 + row_offset(slab, row, thread_of_group) for row in range(2)]
        of_rows = [epilogue.of_row(plan, v, m) for m in rows]
        for pair in cutlass.range(first, last, AT_ONCE, unroll=1):
            at = [cutlass.min(pair + i // 2, last - 1) * 2 + i % 2 for i in range(2 * AT_ONCE)]
            columns = [y0 + i * 8 + column_offset(0, thread_of_group % 32) for i in at]
            of_columns = [[epilogue.of_column(plan, v, n + c) for c in range(2)] for n in columns]
            total = cute.make_rmem_tensor(4 * len(at), sums[0].element_type)
            part = cute.make_rmem_tensor(4 * len(at), sums[0].element_type)
            total.fill(0)
            for s in cutlass.range(slices, unroll=4):
                theirs = sums_at(plan, workspace, work, s, thread)
                for i in cutlass.range_constexpr(len(at)):
                    read = cute.make_tensor(part.iterator + 4 * i, cute.make_layout(4))
                    cute.autovec_copy(quad_at(plan, theirs, slab * quads + at[i]), read)
                for i in cutlass.range_constexpr(4 * len(at)):
                    total[i] = total[i] + part[i]
            for i in cutlass.range_constexpr(len(at)):
                if pair + i // 2 < last:
                    store_quad(
                        plan, total, 4 * i, v, (target.d, target.ldd), (rows, columns[i]), (of_rows, of_columns[i])
                    )


@cute.jit
def store_quad(
    plan: cutlass.Constexpr, total: cute.Tensor, first: cutlass.Constexpr, v, target: tuple, place: tuple, of: tuple
):
    """Finishes two neighbouring sums of each of a thread's two rows, and stores them."""
    d, ldd = target
    rows, n = place
    of_rows, of_columns = of
    out = cute.make_rmem_tensor(2, d.dtype)
    for row in cutlass.range_constexpr(2):
        m = rows[row]
        for i in cutlass.range_constexpr(2):
            value = epilogue.finish(plan, total[first + 2 * row + i], of_rows[row], of_columns[i], v.scalars)
            out[i] = value.to(d.dtype)
        to = d + (Int64(m) * ldd + n)
        if m < v.m and n + 1 < v.n:
            cute.autovec_copy(out, cute.make_tensor(to.align(4), cute.make_layout(2)))
        elif m < v.m and n < v.n:
            epilogue.element_at(to, Int32(0))[0] = out[0]


@cute.jit
def tell(flag: Int64, ticket: Int64):
    """Sets a flag after all that the thread has seen stored."""
    cute.arch.inline_ptx("st.release.gpu.global.u64 [{$r0}], {$r1};", read_only_args=[flag, ticket])


@cute.jit
def await_ticket(flag: Int64, ticket: Int64):
    """Waits until a flag is set, and sets it back. Of an odd ticket it waits for 20 s at most, and then ends the kernel with
    an error: another call has taken the same workspace."""
    began, found = cute.arch.globaltimer(), look(flag)
    while found != ticket:
        if ticket & 1 == 1 and cute.arch.globaltimer() - began > MOST_NS:
            cute.arch.inline_ptx("trap;")
        found = look(flag)
    cute.arch.inline_ptx("st.relaxed.gpu.global.u64 [{$r0}], 0;", read_only_args=[flag])


@cute.jit
def look(flag: Int64) -> Int64:
    """What a flag has, and after it all that was stored before it."""
    return cute.arch.inline_ptx(
        "ld.acquire.gpu.global.u64 {$w0}, [{$r0}];", write_only_types=[Int64], read_only_args=[flag]
    )
