"""The producer warps: one keeps stages of operands under way by TMA, one the scales that belong to them."""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int16, Int32, Int64
from cutlass.cute.nvgpu import cpasync

from gemmill.cutedsl.barriers import wait
from gemmill.cutedsl.packed import Packed
from gemmill.cutedsl.walk import Job, Walk, advance, tile_of

EVICT_FIRST = 0x12F0000000000000
"""Cache policy of data that is read once: the weights of a kernel with few tokens."""
EVICT_LAST = 0x14F0000000000000
"""Cache policy of data that many CTAs read."""


@cute.jit
def load_operands(
    plan: cutlass.Constexpr, x: tuple, y: tuple, barriers: tuple, walk: Walk, job: Job, constant_weights: Int32
):
    """One warp keeps every stage under way. Weights that nobody writes need not wait for the kernel before this one."""
    full, empty = barriers
    parts_x = partition(plan, x, plan.cluster_y, plan.tile_x, True)
    parts_y = partition(plan, y, plan.cluster_x, plan.tile_y, False)
    weights, tokens = (parts_x, parts_y) if plan.swap_ab else (parts_y, parts_x)

    early = Int32(0)
    if constant_weights != 0:
        early = cutlass.min(job.k_steps, plan.stages)
        at_x, at_y = tile_of(plan, walk, job.first)
        for t in cutlass.range(early, unroll=1):
            announce(plan, full + t)
            load(plan, weights, at_x if plan.swap_ab else at_y, job.k_first + t, t, full)
    elif cutlass.const_expr(plan.prefetched > 0):
        at_x, at_y = tile_of(plan, walk, job.first)
        for t in cutlass.range(cutlass.min(job.k_steps, plan.prefetched), unroll=1):
            atom, _, in_memory, _, _ = weights
            cute.prefetch(atom, in_memory[None, at_x if plan.swap_ab else at_y, job.k_first + t])
    cute.arch.griddepcontrol_wait()

    stage, phase = Int32(0), Int32(1)
    loaded = Int32(0)
    tile = job.first
    while tile < walk.tiles():
        at_x, at_y = tile_of(plan, walk, tile)
        for k_step in cutlass.range(job.k_steps, unroll=1):
            if loaded >= early:
                wait(empty + stage, phase)
                announce(plan, full + stage)
                load(plan, weights, at_x if plan.swap_ab else at_y, job.k_first + k_step, stage, full)
            load(plan, tokens, at_y if plan.swap_ab else at_x, job.k_first + k_step, stage, full)
            loaded = loaded + 1
            stage, phase = advance(plan, (stage, phase))
        tile = tile + job.step


@cute.jit
def partition(plan: cutlass.Constexpr, operand: tuple, sharers: int, rows: int, is_x: bool):
    """(atom, shared stages, tiles in memory, multicast mask, cache policy) of an operand."""
    atom, coords, shared = operand
    tiles = cute.local_tile(coords, (rows, plan.tile_k), (None, None))
    rank, mask, policy = Int32(0), None, None
    if cutlass.const_expr(plan.swap_ab):  # few tokens: every weight is read once, every token by all
        policy = Int64(EVICT_FIRST if is_x else EVICT_LAST)
    if cutlass.const_expr(sharers > 1):
        own = cute.arch.block_idx_in_cluster()
        if cutlass.const_expr(is_x):
            rank = own // plan.cluster_x
            lanes = sum(1 << (i * plan.cluster_x) for i in range(plan.cluster_y))
            mask = Int16(lanes) << Int16(own % plan.cluster_x)
        else:
            rank = own % plan.cluster_x
            mask = Int16((1 << plan.cluster_x) - 1) << Int16(own // plan.cluster_x * plan.cluster_x)
    in_shared, in_memory = cpasync.tma_partition(
        atom, rank, cute.make_layout(sharers), cute.group_modes(shared, 0, 2), cute.group_modes(tiles, 0, 2)
    )
    return atom, in_shared, in_memory, mask, policy


@cute.jit
def announce(plan: cutlass.Constexpr, barrier: cute.Pointer):
    """Tells a stage's barrier how many bytes are on their way."""
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, plan.x_bytes + plan.y_bytes)


@cute.jit
def load(plan: cutlass.Constexpr, part: tuple, tile: Int32, k_step: Int32, stage: Int32, full: cute.Pointer):
    """Starts the load of one operand's stage."""
    atom, in_shared, in_memory, mask, policy = part
    cute.copy(
        atom,
        in_memory[None, tile, k_step],
        in_shared[None, stage],
        tma_bar_ptr=full + stage,
        mcast_mask=mask,
        cache_policy=policy,
    )


@cute.jit
def load_scales(plan: cutlass.Constexpr, scales, shared: cute.Pointer, barriers: tuple, vectors, walk: Walk, job: Job):
    """One warp copies the scales that belong to each stage."""
    full, empty = barriers
    cute.arch.griddepcontrol_wait()
    stage, phase = Int32(0), Int32(1)
    tile = job.first
    while tile < walk.tiles():
        at_x, at_y = tile_of(plan, walk, tile)
        at_m, at_n = (at_y, at_x) if plan.swap_ab else (at_x, at_y)
        origin = (at_m * plan.tile_m, at_n * plan.tile_n)
        for k_step in cutlass.range(job.k_steps, unroll=1):
            wait(empty + stage, phase)
            copy_scales(
                plan,
                scales,
                shared + stage * plan.scales,
                job.k_first + k_step,
                origin,
                (vectors.m, vectors.n, vectors.k),
            )
            cute.arch.cp_async_mbarrier_arrive_noinc(full + stage)
            stage, phase = advance(plan, (stage, phase))
        tile = tile + job.step


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
def copy_scales(
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
