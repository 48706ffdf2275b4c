"""The producer warps where rows belong to experts: the expert is one of the coordinates by which TMA loads weights.

Other warps bring the scales that belong to each stage. A family that gathers rows of A has warps of its own for that.
"""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.cute.nvgpu import cpasync

from gemmill.gemm import producer
from gemmill.gemm.experts import ExpertTiles
from gemmill.gemm.pipeline import Pipeline
from gemmill.gemm.producer import EVICT_FIRST, EVICT_NORMAL, copy_scales, load, partition


@cute.jit
def load_operands(
    plan: cutlass.Constexpr,
    loads: tuple,
    shared: cutlass.Constexpr,
    pipeline: Pipeline,
    tiles: ExpertTiles,
):
    """One warp keeps every stage of what TMA brings under way. `loads` are A and B."""
    tokens, weights = (loads[0], shared.x), (loads[1], shared.y)
    if cutlass.const_expr(plan.swap_ab):
        tokens, weights = (loads[0], shared.y), (loads[1], shared.x)
    state = pipeline.producer_start()
    expert, tile = Int32(0), tiles.first(0)
    while tiles.has(tile):
        expert = tiles.expert_of(tile, expert)
        m0, at_n, begin, end = tiles.at(tile, expert)
        of_weights = partition_weights(plan, weights, tiles.weights_of(expert), end - begin)
        of_tokens = of_weights
        if cutlass.const_expr(not plan.indexed):
            of_tokens = partition(plan, tokens, not plan.swap_ab, None, -m0)
        for k_step in cutlass.range(tiles.job.k_steps, unroll=1):
            pipeline.producer_acquire(state)
            pipeline.producer_expect(state.stage, plan.tma_bytes)
            load(plan, of_weights, at_n, k_step, pipeline, state.stage)
            if cutlass.const_expr(not plan.indexed):
                load(plan, of_tokens, Int32(0), k_step, pipeline, state.stage)
            state = pipeline.advance(state)
        tile = tiles.after(tile, 1)


@cute.jit
def partition_weights(plan: cutlass.Constexpr, weights: tuple, expert: Int32, rows: Int32):
    """(atom, shared stages, tiles in memory, multicast mask, cache policy) of one expert's weights."""
    tma, shared = weights
    tiles = cute.local_tile(tma.coords, (plan.tile_n, plan.tile_k), (None, None, None))
    in_shared, in_memory = cpasync.tma_partition(
        tma.atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(tiles, 0, 2)
    )
    policy = Int64(EVICT_NORMAL)
    if rows <= plan.tile_m:  # nobody reads them again
        policy = Int64(EVICT_FIRST)
    return tma.atom, in_shared, in_memory[None, None, None, expert], None, policy


@dataclass
class GroupScales(producer.GroupScales):
    """Scales that change along K, of all experts. Strides in elements."""

    b_stride_expert: Int64


def group_scales_of(x) -> GroupScales:
    """The scales of a call."""
    return GroupScales(**vars(producer.group_scales_of(x)), b_stride_expert=x.b_scale_stride_expert)


def copies_of(plan, count: int) -> int:
    """Copies that a thread begins of so many scales; room for one where there are none."""
    return max(1, (count + plan.copying_threads - 1) // plan.copying_threads)


def make_copies(plan) -> tuple:
    """Where a thread's copies of A's scales and of B's scales come from: addresses that move along K."""
    return tuple(cute.make_rmem_tensor(copies_of(plan, count), Int64) for count in (plan.a_scales, plan.b_scales))


@cute.jit
def aim(
    plan: cutlass.Constexpr,
    scales: GroupScales,
    copies: tuple,
    rows: cute.Tensor,
    at_n: Int32,
    weights: Int32,
    n_end: Int32,
    lane: Int32,
    of_column: cutlass.Constexpr = None,
):
    """Points a thread's copies at the first scales of a tile: those of its rows of A, and those of its columns.

    `of_column` tells which scale a column has, where columns are in an order of their own.
    """
    a_at, b_at = copies
    g = plan.group_size
    for i in cutlass.range_constexpr(cute.size(a_at)):
        a_at[i] = scales.a.toint() + 4 * Int64(rows[i]) * scales.a_stride_m
    of_expert = scales.b.toint() + 4 * Int64(weights) * scales.b_stride_expert
    for i in cutlass.range_constexpr(cute.size(b_at)):
        n = cutlass.min(at_n * plan.tile_n + lane + plan.copying_threads * i, n_end - 1)
        if cutlass.const_expr(not plan.b_rows_scaled):  # of blocks
            n = cutlass.min(at_n * plan.tile_n // g + lane + plan.copying_threads * i, (n_end - 1) // g)
        if cutlass.const_expr(of_column is not None):
            n = of_column(n)
        b_at[i] = of_expert + 4 * Int64(n) * scales.b_stride_n


@cute.jit
def copy_stage(
    plan: cutlass.Constexpr,
    scales: GroupScales,
    copies: tuple,
    group: Int32,
    target: cute.Pointer,
    k: Int32,
    lane: Int32,
    known=None,
):
    """Starts a thread's copies of one stage's scales. Returns the group of K after it.

    Rows of A whose bit in `known` is clear have zeros.
    """
    a_at, b_at = copies
    g = plan.group_size
    last_group = (k + g - 1) // g - 1
    for p in cutlass.range_constexpr(plan.promotions):
        to = target + p * (plan.scales // plan.promotions) + lane
        a_step, b_step = 4 * scales.a_stride_k, 4 * scales.b_stride_k
        if group >= last_group:
            a_step, b_step = Int64(0), Int64(0)
        size = Int32(4)
        if group > last_group:  # zeros, which those that TMA puts there do not make NaN
            size = Int32(0)
        copy_scales(a_at, a_step, size, to, lane, plan.copying_threads, plan.a_scales, known)
        copy_scales(b_at, b_step, size, to + plan.a_scales, lane, plan.copying_threads, plan.b_scales)
        group = group + 1
    return group


@cute.jit
def load_scales(
    plan: cutlass.Constexpr,
    scales: GroupScales,
    shared: cute.Pointer,
    pipeline: Pipeline,
    tiles: ExpertTiles,
    vectors,
    of_column: cutlass.Constexpr = None,
):
    """Warps copy the scales that belong to each stage. Beyond M and N they take the last valid one: those sums are not
    stored."""
    lane = cute.arch.thread_idx()[0] - plan.consumers - 32
    rows = cute.make_rmem_tensor(copies_of(plan, plan.a_scales), Int32)
    copies = make_copies(plan)
    state = pipeline.producer_start()
    expert, tile = Int32(0), tiles.first(0)
    while tiles.has(tile):
        expert = tiles.expert_of(tile, expert)
        m0, at_n, _, _ = tiles.at(tile, expert)
        for i in cutlass.range_constexpr(cute.size(rows)):
            rows[i] = cutlass.min(m0 + lane + plan.copying_threads * i, vectors.m - 1)
        aim(plan, scales, copies, rows, at_n, tiles.weights_of(expert), vectors.n, lane, of_column)
        group = Int32(0)
        for _ in cutlass.range(tiles.job.k_steps, unroll=1):
            pipeline.producer_acquire(state)
            group = copy_stage(plan, scales, copies, group, shared + state.stage * plan.scales, vectors.k, lane)
            pipeline.producer_commit(state)
            state = pipeline.advance(state)
        tile = tiles.after(tile, 1)
