"""The producer warps: one keeps stages of operands under way by TMA, others the scales that belong to them."""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int16, Int32, Int64
from cutlass.cute.nvgpu import cpasync

from gemmill.gemm.limits import PREFETCH_SHARE
from gemmill.gemm.packed import Packed
from gemmill.gemm.pipeline import Pipeline
from gemmill.gemm.walk import Tiles, rows_back

EVICT_FIRST = 0x12F0000000000000
"""Cache policy of data that is read once: the weights, where one tile holds all tokens."""
EVICT_NORMAL = 0x1000000000000000
"""Cache policy of weights that the next tile of tokens reads again."""
EVICT_LAST = 0x14F0000000000000
"""Cache policy of data that many CTAs read."""


@cute.jit
def load_operands(
    plan: cutlass.Constexpr,
    loads: tuple,
    shared: cutlass.Constexpr,
    pipeline: Pipeline,
    tiles: Tiles,
    m: Int32,
):
    """One warp keeps every stage under way. Weights that nobody writes need not wait for the kernel before this one.

    `loads` are X and Y, and Y again with an atom of `box_rows` where an A that leaves whole boxes of a tile empty is
    loaded box by box.
    """
    job = tiles.job
    x, y = (loads[0], shared.x), (loads[1], shared.y)
    boxed = len(loads) > 2
    stage_bytes, boxes = Int32(plan.x_bytes + plan.y_bytes), Int32(0)
    if cutlass.const_expr(boxed):
        if m <= plan.tile_m - plan.box_rows:
            boxes = (m + plan.box_rows - 1) // plan.box_rows
            stage_bytes = plan.x_bytes + boxes * (plan.y_bytes // (plan.tile_m // plan.box_rows))
    weights = partition(plan, x if plan.swap_ab else y, plan.swap_ab, tiles.walk.tiles_y, Int32(0))

    early = Int32(0)
    if tiles.constant_weights != 0:
        early = cutlass.min(job.k_steps, plan.stages)
        at_x, at_y = tiles.at(job.first)
        for t in cutlass.range(early, unroll=1):
            pipeline.producer_expect(t, stage_bytes)
            load(plan, weights, at_x if plan.swap_ab else at_y, job.k_first + t, pipeline, t)
    elif cutlass.const_expr(plan.prefetched > 0):
        at_x, _ = tiles.at(job.first)
        for t in cutlass.range(cutlass.min(job.k_steps // PREFETCH_SHARE, plan.prefetched), unroll=1):
            atom, _, in_memory, _, _ = weights
            cute.prefetch(atom, in_memory[None, at_x, job.k_first + t])

    state = pipeline.producer_start()
    loaded = Int32(0)
    tile = tiles.first(0)
    while tiles.has(tile):
        at_x, at_y = tiles.at(tile)
        at_m, at_n = (at_y, at_x) if plan.swap_ab else (at_x, at_y)
        back = rows_back(plan, at_m, m)
        tokens = partition(plan, y if plan.swap_ab else x, not plan.swap_ab, tiles.walk.tiles_y, back)
        cute.arch.griddepcontrol_wait()  # what is above needs nothing of the kernel before, and takes a while
        for k_step in cutlass.range(job.k_steps, unroll=1):
            if loaded >= early:
                pipeline.producer_acquire(state)
                pipeline.producer_expect(state.stage, stage_bytes)
                load(plan, weights, at_n, job.k_first + k_step, pipeline, state.stage)
            if cutlass.const_expr(boxed):
                if boxes > 0:
                    load_boxes(plan, (loads[2], shared.y), boxes, job.k_first + k_step, pipeline, state.stage)
                else:
                    load(plan, tokens, at_m, job.k_first + k_step, pipeline, state.stage)
            else:
                load(plan, tokens, at_m, job.k_first + k_step, pipeline, state.stage)
            loaded = loaded + 1
            state = pipeline.advance(state)
        tile = tiles.after(tile, 1)


@cute.jit
def partition(plan: cutlass.Constexpr, operand: tuple, is_x: cutlass.Constexpr, tiles_y: Int32, back: Int32):
    """(atom, shared stages, tiles in memory, multicast mask, cache policy) of an operand, all tiles moved back by `back` rows."""
    tma, shared = operand
    rows, sharers = (plan.tile_x, plan.cluster_y) if is_x else (plan.tile_y, plan.cluster_x)
    tiles = cute.local_tile(cute.domain_offset((-back, 0), tma.coords), (rows, plan.tile_k), (None, None))
    rank, mask, policy = Int32(0), None, None
    if cutlass.const_expr(plan.swap_ab):  # few tokens: all read them
        policy = Int64(EVICT_LAST)
        if cutlass.const_expr(is_x):
            policy = Int64(EVICT_FIRST)
            if tiles_y > 1:
                policy = Int64(EVICT_NORMAL)
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
        tma.atom, rank, cute.make_layout(sharers), cute.group_modes(shared, 0, 2), cute.group_modes(tiles, 0, 2)
    )
    return tma.atom, in_shared, in_memory, mask, policy


@cute.jit
def load(plan: cutlass.Constexpr, part: tuple, tile: Int32, k_step: Int32, pipeline: Pipeline, stage: Int32):
    """Starts the load of one operand's stage."""
    atom, in_shared, in_memory, mask, policy = part
    cute.copy(
        atom,
        in_memory[None, tile, k_step],
        in_shared[None, stage],
        tma_bar_ptr=pipeline.full + stage,
        mcast_mask=mask,
        cache_policy=policy,
    )


@cute.jit
def load_boxes(plan: cutlass.Constexpr, operand: tuple, boxes: Int32, k_step: Int32, pipeline: Pipeline, stage: Int32):
    """Starts the loads of A's boxes of the only tile of its rows. What they leave of the tile reaches no result."""
    tma, shared = operand
    shape = (plan.box_rows, plan.tile_k)
    tiles = cute.local_tile(tma.coords, shape, (None, None))
    parts = cute.flat_divide(shared, shape)[None, None, None, 0, None]
    in_shared, in_memory = cpasync.tma_partition(
        tma.atom, Int32(0), cute.make_layout(1), cute.group_modes(parts, 0, 2), cute.group_modes(tiles, 0, 2)
    )
    for i in cutlass.range(boxes, unroll=1):
        cute.copy(
            tma.atom,
            in_memory[None, i, k_step],
            in_shared[None, i, stage],
            tma_bar_ptr=pipeline.full + stage,
            cache_policy=Int64(EVICT_LAST),
        )


@dataclass
class GroupScales(Packed):
    """Scales that change along K. Strides in elements."""

    a: cute.Pointer
    b: cute.Pointer
    a_stride_m: Int64
    a_stride_k: Int64
    b_stride_n: Int64
    b_stride_k: Int64


def group_scales_of(x) -> GroupScales:
    """The scales of a call."""
    a, b = (x.a_scales, x.b_scales), (x.b_scale_stride_n, x.b_scale_stride_k)
    return GroupScales(*a, x.a_scale_stride_m, x.a_scale_stride_k, *b)


@cute.jit
def load_scales(
    plan: cutlass.Constexpr,
    scales: GroupScales,
    shared: cute.Pointer,
    pipeline: Pipeline,
    vectors,
    tiles: Tiles,
):
    """Warps copy the scales that belong to each stage. Beyond M and N they take the last valid one: those sums are not
    stored.

    Addresses are worked out once a tile and then moved along K. A stage's copies have to be under way as soon as its
    operands' are. Addresses that were worked out for each stage took 15 % of the time of 256x128 tiles (H200,
    2026-11-20).
    """
    lanes = 32 * plan.scale_warps
    lane = cute.arch.thread_idx()[0] - plan.consumers - 32
    g = plan.group_size
    last_group = (vectors.k + g - 1) // g - 1
    a_at = cute.make_rmem_tensor((plan.a_scales + lanes - 1) // lanes, Int64)
    b_at = cute.make_rmem_tensor((plan.b_scales + lanes - 1) // lanes, Int64)
    state = pipeline.producer_start()
    tile = tiles.first(0)
    while tiles.has(tile):
        at_x, at_y = tiles.at(tile)
        at_m, at_n = (at_y, at_x) if plan.swap_ab else (at_x, at_y)
        m_first = at_m * plan.tile_m - rows_back(plan, at_m, vectors.m)
        group = tiles.job.k_first * plan.promotions
        for i in cutlass.range_constexpr(cute.size(a_at)):
            m = cutlass.min(m_first + lane + lanes * i, vectors.m - 1)
            a_at[i] = scales.a.toint() + 4 * (Int64(m) * scales.a_stride_m + Int64(group) * scales.a_stride_k)
        for i in cutlass.range_constexpr(cute.size(b_at)):
            n = cutlass.min(at_n * plan.tile_n + lane + lanes * i, vectors.n - 1)
            if cutlass.const_expr(not plan.b_rows_scaled):  # of blocks
                n = cutlass.min(at_n * plan.tile_n // g + lane + lanes * i, (vectors.n - 1) // g)
            b_at[i] = scales.b.toint() + 4 * (Int64(n) * scales.b_stride_n + Int64(group) * scales.b_stride_k)
        cute.arch.griddepcontrol_wait()
        for _ in cutlass.range(tiles.job.k_steps, unroll=1):
            pipeline.producer_acquire(state)
            for p in cutlass.range_constexpr(plan.promotions):
                target = shared + state.stage * plan.scales + p * (plan.scales // plan.promotions) + lane
                a_step, b_step = 4 * scales.a_stride_k, 4 * scales.b_stride_k
                if group >= last_group:
                    a_step, b_step = Int64(0), Int64(0)
                size = Int32(4)
                if group > last_group:  # zeros, which those that TMA puts there do not make NaN
                    size = Int32(0)
                copy_scales(a_at, a_step, size, target, lane, lanes, plan.a_scales)
                copy_scales(b_at, b_step, size, target + plan.a_scales, lane, lanes, plan.b_scales)
                group = group + 1
            pipeline.producer_commit(state)
            state = pipeline.advance(state)
        tile = tiles.after(tile, 1)


@cute.jit
def copy_scales(
    at: cute.Tensor,
    step: Int64,
    size: Int32,
    target: cute.Pointer,
    lane: Int32,
    lanes: cutlass.Constexpr,
    count: cutlass.Constexpr,
    known=None,
):
    """Starts copies of one group's scales (zeros, if `size` is 0) to shared memory, and moves their addresses by `step` bytes.

    Those whose bit in `known` is clear are zeros, too.
    """
    for i in cutlass.range_constexpr(cute.size(at)):
        own = size
        if cutlass.const_expr(known is not None):
            own = size * (known >> i & 1)
        if cutlass.const_expr(count % lanes == 0) or lane + lanes * i < count:
            cute.arch.inline_ptx(
                "cp.async.ca.shared.global [{$r0}], [{$r1}], 4, {$r2};",
                read_only_args=[target + lanes * i, at[i], own],
            )
        at[i] = at[i] + step
