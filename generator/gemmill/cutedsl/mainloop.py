"""The main loop of a consumer group: WGMMA over K, with sums promoted to registers where precision or scales ask for it.

A thread's sums of one 64-row slab lie as WGMMA leaves them: for each 8 columns, two rows (8 apart) of two neighbouring
columns. `index` is the only place that knows it.
"""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import warpgroup

from gemmill.cutedsl.packed import Packed
from gemmill.cutedsl.plan import SLAB, Plan


def index(plan: Plan, slab: int, row: int, column: int) -> int:
    """Where a thread keeps row 0 or 1 of a slab and its `column`-th column."""
    return slab * plan.tile_y // 2 + column // 2 * 4 + row * 2 + column % 2


def column_offset(column: int, lane: Int32) -> Int32:
    """Column of the tile that a thread's `column`-th is."""
    return column // 2 * 8 + lane % 4 * 2 + column % 2


def row_offset(slab: int, row: int, thread: Int32) -> Int32:
    """Row of the group that a thread's row 0 or 1 of a slab is."""
    return slab * SLAB + thread // 32 * 16 + thread % 32 // 4 + row * 8


@dataclass
class GroupScales(Packed):
    """Scales that change along K. Strides in elements."""

    a: cute.Pointer
    b: cute.Pointer
    a_stride_m: Int64
    a_stride_k: Int64
    b_stride_n: Int64
    b_stride_k: Int64


@cute.jit
def copy_scale(target: cute.Pointer, source: cute.Pointer):
    """Starts a copy of one float to shared memory."""
    cute.arch.inline_ptx("cp.async.ca.shared.global [{$r0}], [{$r1}], 4;", read_only_args=[target, source])


@cute.jit
def load_scales(
    plan: cutlass.Constexpr,
    scales: GroupScales,
    stage: cute.Pointer,
    k_step: Int32,
    origin: tuple,
    size: tuple,
):
    """One warp starts copies of a stage's scales. Beyond an edge it takes the last valid one: those sums are not stored."""
    lane = cute.arch.lane_idx()
    m0, n0 = origin
    m, n, k = size
    g = plan.config.problem.group_size
    last_group = (k + g - 1) // g - 1
    for p in cutlass.range_constexpr(plan.promotions):
        group = Int64(cutlass.min(k_step * plan.promotions + p, last_group))
        target = stage + p * (plan.scales // plan.promotions)
        for i in cutlass.range_constexpr((plan.a_scales + 31) // 32):
            row = lane + 32 * i
            if cutlass.const_expr(plan.a_scales % 32 == 0) or row < plan.a_scales:
                source = Int64(cutlass.min(m0 + row, m - 1)) * scales.a_stride_m + group * scales.a_stride_k
                copy_scale(target + row, scales.a + source)
        for i in cutlass.range_constexpr((plan.b_scales + 31) // 32):
            column = lane + 32 * i
            if cutlass.const_expr(plan.b_scales % 32 == 0) or column < plan.b_scales:
                at = cutlass.min(n0 + column, n - 1)
                if cutlass.const_expr(not plan.b_rows_scaled):
                    at = cutlass.min(n0 // g + column, (n - 1) // g)
                source = Int64(at) * scales.b_stride_n + group * scales.b_stride_k
                copy_scale(target + plan.a_scales + column, scales.b + source)


@cute.jit
def read_factors(plan: cutlass.Constexpr, scales: cute.Tensor, group: Int32, thread: Int32, n0: Int32):
    """The factors of one group of K, out of shared memory, as `apply` wants them.

    Returns (of rows, of columns), lists of registers. A block's scale is multiplied into the side that A's scales are on.
    """
    lane = thread % 32
    g = plan.config.problem.group_size
    columns = [column_offset(c, lane) for c in range(plan.tile_y // 4)]
    rows = [group * plan.group_rows + row_offset(s, r, thread) for s in range(plan.slabs) for r in range(2)]
    of_b = plan.a_scales
    if cutlass.const_expr(plan.b_rows_scaled and plan.swap_ab):
        return [scales[of_b + row] for row in rows], [scales[column] for column in columns]
    if cutlass.const_expr(plan.b_rows_scaled):
        return [scales[row] for row in rows], [scales[of_b + column] for column in columns]
    if cutlass.const_expr(plan.swap_ab):
        first = n0 % g + group * plan.group_rows
        blocks = [scales[of_b + (first + s * SLAB) // g] for s in range(plan.slabs)]
        return blocks, [scales[column] for column in columns]
    return [scales[row] for row in rows], [scales[of_b + block] for block in range(plan.b_scales)]


@cute.jit
def apply(plan: cutlass.Constexpr, sums: cute.Tensor, partial: cute.Tensor, factors: tuple, n0: Int32):
    """Adds partial sums of one group of K, times their scales, to the sums."""
    of_rows, of_columns = factors
    g = plan.config.problem.group_size
    for slab in cutlass.range_constexpr(plan.slabs):
        for row in cutlass.range_constexpr(2):
            r = slab * 2 + row
            if cutlass.const_expr(not plan.b_rows_scaled and not plan.swap_ab):
                products = [of_rows[r] * block for block in of_columns]
            for column in cutlass.range_constexpr(plan.tile_y // 4):
                i = index(plan, slab, row, column)
                if cutlass.const_expr(plan.b_rows_scaled):
                    sums[i] = sums[i] + partial[i] * of_rows[r] * of_columns[column]
                elif cutlass.const_expr(plan.swap_ab):
                    sums[i] = sums[i] + partial[i] * (of_rows[slab] * of_columns[column])
                elif cutlass.const_expr(plan.blocks_aligned):
                    sums[i] = sums[i] + partial[i] * products[column // 2 * 8 // g]
                else:
                    factor = products[0]
                    if n0 % g + column // 2 * 8 >= g:
                        factor = products[1]
                    sums[i] = sums[i] + partial[i] * factor


@cute.jit
def add(sums: cute.Tensor, partial: cute.Tensor):
    """Adds partial sums to the sums."""
    for i in cutlass.range_constexpr(cute.size(sums)):
        sums[i] = sums[i] + partial[i]


@cute.jit
def multiply(
    plan: cutlass.Constexpr, mma: cute.TiledMma, sums: cute.Tensor, x: cute.Tensor, y: cute.Tensor, stage: Int32, first: int, last: int, fresh: cutlass.Constexpr
):
    """Issues the WGMMAs of MMA steps `first` to `last` of a stage, as one group; `fresh` sums start from zero."""
    warpgroup.fence()
    for step in cutlass.range_constexpr(first, last):
        mma.set(warpgroup.Field.ACCUMULATE, not fresh or step > first)
        cute.gemm(mma, sums, x[(None, None, step, stage)], y[(None, None, step, stage)], sums)
    warpgroup.commit_group()


@cute.jit
def release(plan: cutlass.Constexpr, empty: cute.Pointer, stage: Int32):
    """One warp says that it has read a stage, to every CTA whose loads also land here."""
    lane = cute.arch.lane_idx()
    if cutlass.const_expr(plan.cluster_size == 1):
        if lane == 0:
            cute.arch.mbarrier_arrive(empty + stage)
    else:
        rank = cute.arch.block_idx_in_cluster()
        if lane < plan.sharers:
            # First the CTAs of the same X, then the others of the same Y.
            peer = rank % plan.cluster_x + lane * plan.cluster_x
            if lane >= plan.cluster_y:
                other = lane - plan.cluster_y
                other = other + Int32(other >= rank % plan.cluster_x)
                peer = rank - rank % plan.cluster_x + other
            cute.arch.mbarrier_arrive(empty + stage, peer)


@cute.jit
def accumulate(
    plan: cutlass.Constexpr,
    mma: cute.TiledMma,
    sums: cute.Tensor,
    partials: list,
    operands: tuple,
    barriers: tuple,
    scales: cute.Tensor,
    steps: tuple,
    place: tuple,
):
    """Multiplies `count` K steps, the first of which is the CTA's `first`-th, into `sums`."""
    x, y = operands
    full, empty = barriers
    first, count = steps
    group, thread, n0 = place
    depth = cute.size(x, mode=[2])  # MMA steps in a K step
    sums.fill(0)
    stage, phase = first % plan.stages, first // plan.stages & 1
    before = stage
    for step in cutlass.range(count, unroll=1):
        cute.arch.mbarrier_wait(full + stage, phase)
        if cutlass.const_expr(plan.promoted):
            run = depth // plan.promotions
            factors = []
            for p in cutlass.range_constexpr(plan.promotions):
                multiply(plan, mma, partials[p % plan.partials], x, y, stage, p * run, (p + 1) * run, True)
                if cutlass.const_expr(plan.grouped):
                    factors.append(read_factors(plan, scales[None, p, stage], group, thread, n0))
                if cutlass.const_expr(plan.partials == 1):
                    warpgroup.wait_group(0)
                    if cutlass.const_expr(p + 1 == plan.promotions):
                        release(plan, empty, stage)
                    promote(plan, sums, partials[0], factors, p, n0)
            if cutlass.const_expr(plan.partials > 1):
                for p in cutlass.range_constexpr(plan.promotions):
                    warpgroup.wait_group(plan.promotions - 1 - p)
                    if cutlass.const_expr(p + 1 == plan.promotions):
                        release(plan, empty, stage)
                    promote(plan, sums, partials[p], factors, p, n0)
        else:
            multiply(plan, mma, sums, x, y, stage, 0, depth, False)
            warpgroup.wait_group(1)
            if step > 0:
                release(plan, empty, before)
            before = stage
        stage = stage + 1
        if stage == plan.stages:
            stage = Int32(0)
            phase = phase ^ 1
    if cutlass.const_expr(not plan.promoted):
        warpgroup.wait_group(0)
        if count > 0:
            release(plan, empty, before)


@cute.jit
def promote(plan: cutlass.Constexpr, sums: cute.Tensor, partial: cute.Tensor, factors: list, p: int, n0: Int32):
    """Adds partial sums to the sums, with the scales of their group of K where there are any."""
    if cutlass.const_expr(plan.grouped):
        apply(plan, sums, partial, factors[p], n0)
    else:
        add(sums, partial)
