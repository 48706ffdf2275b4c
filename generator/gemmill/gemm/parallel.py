"""Slices of K that no cluster binds: each CTA stores its sums, and the one that comes last of a tile's adds them all up.

A slice's sums lie in the workspace as the threads of its consumer groups hold them, quad by quad. Threads of the same
place read them again. Before them come the tiles' counters, which the host has set to zero.
"""

# mypy: ignore-errors
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from gemmill.gemm.elements import ELEMENT_OF

COUNTERS = 64
"""The number of counters is a multiple of this many, so that sums begin at whole lines of 256 bytes."""

def quads_at_once(plan) -> int:
    """Loads of 16 bytes that a thread has under way: as many as registers are left for beside a tile's sums."""
    return 16 if plan.slabs * plan.unit_registers <= 128 else 8


@cute.jit
def sums_of(plan: cutlass.Constexpr, workspace: cute.Pointer, tiles: Int32, slice_of_tile: Int64, thread: Int32):
    """Where a thread's sums of one slice begin."""
    counters = (tiles + COUNTERS - 1) // COUNTERS * COUNTERS
    at = counters + slice_of_tile * (plan.tile_x * plan.tile_y) + thread * 4
    return cute.recast_ptr(workspace + at, dtype=ELEMENT_OF[plan.sum_dtype]).align(16)


def quad_of(sums: list, quads: int, i: int) -> cute.Tensor:
    """The i-th four sums of a thread."""
    return cute.make_tensor(sums[i // quads].iterator + i % quads * 4, cute.make_layout(4))


@cute.jit
def join(plan: cutlass.Constexpr, sums: list, workspace: cute.Pointer, work: tuple, thread: Int32) -> Int32:
    """Stores the sums of a slice. Returns 1 in the CTA that comes last of those of a tile, whose sums are then those over
    all of K, else 0. `work` is (tile, tiles, slice, slices); `thread` is of all consumer groups.

    Slices are added in the order of K, whoever comes last.
    """
    tile, tiles, own, slices = work
    quads = plan.unit_registers // 4
    count = plan.slabs * quads
    mine = sums_of(plan, workspace, tiles, Int64(tile) * slices + own, thread)
    for i in cutlass.range_constexpr(count):
        cute.autovec_copy(
            quad_of(sums, quads, i), cute.make_tensor((mine + i * plan.consumers * 4).align(16), cute.make_layout(4))
        )
    cute.arch.fence_acq_rel_gpu()
    cute.arch.barrier(barrier_id=3, number_of_threads=plan.consumers)
    came = Int32(0)
    if thread == 0:
        counter = cute.recast_ptr(workspace, dtype=Int32) + tile
        came = cute.arch.inline_ptx(
            "atom.add.acq_rel.gpu.global.u32 {$w0}, [{$r0}], 1;",
            write_only_types=[Int32],
            read_only_args=[counter],
        )
    is_last = any_thread(plan, Int32(came == slices - 1))
    if is_last != 0:
        cute.arch.fence_acq_rel_gpu()
        for slab in cutlass.range_constexpr(plan.slabs):
            sums[slab].fill(0)
        for s in cutlass.range(slices, unroll=1):
            theirs = sums_of(plan, workspace, tiles, Int64(tile) * slices + s, thread)
            for first in cutlass.range_constexpr(0, count, quads_at_once(plan)):
                some = min(quads_at_once(plan), count - first)
                loaded = cute.make_rmem_tensor(4 * some, sums[0].element_type)
                for i in cutlass.range_constexpr(some):
                    source = (theirs + (first + i) * plan.consumers * 4).align(16)
                    cute.autovec_copy(
                        cute.make_tensor(source, cute.make_layout(4)),
                        cute.make_tensor(loaded.iterator + 4 * i, cute.make_layout(4)),
                    )
                for i in cutlass.range_constexpr(some):
                    total = quad_of(sums, quads, first + i)
                    for j in cutlass.range_constexpr(4):
                        total[j] = total[j] + loaded[4 * i + j]
    return is_last


@cute.jit
def any_thread(plan: cutlass.Constexpr, truth: Int32) -> Int32:
    """Whether it is not 0 in any thread of the consumer groups, as 0 or 1."""
    return cute.arch.inline_ptx(
        "{\n.reg .pred one, any;\nsetp.ne.s32 one, {$r0}, 0;\n"
        f"barrier.cta.red.or.pred any, 3, {plan.consumers}, one;\n"
        "selp.s32 {$w0}, 1, 0, any;\n}",
        write_only_types=[Int32],
        read_only_args=[truth],
    )
