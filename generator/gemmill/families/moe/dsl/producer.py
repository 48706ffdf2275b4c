"""The producer warps: operands by TMA, the expert of the weights a coordinate; scales that belong to each stage."""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.cute.nvgpu import cpasync

from gemmill.families.moe.dsl.experts import Experts, Walk, expert_of, tile_at
from gemmill.gemm.barriers import wait
from gemmill.gemm.packed import Packed
from gemmill.gemm.producer import EVICT_FIRST, EVICT_NORMAL, announce, copy_scales, load, partition
from gemmill.gemm.walk import Job, advance


@cute.jit
def load_operands(
    plan: cutlass.Constexpr,
    tokens: tuple,
    weights: tuple,
    barriers: tuple,
    tables: cutlass.Constexpr,
    experts: Experts,
    walk: Walk,
    job: Job,
):
    """One warp keeps every stage under way."""
    full, empty = barriers
    stage, phase = Int32(0), Int32(1)
    expert, tile = Int32(0), job.first
    while tile < tables.first[experts.count]:
        expert = expert_of(tables, experts, tile, expert)
        m0, at_n, begin, end = tile_at(plan, tables, walk, tile, expert)
        of_weights = partition_weights(plan, weights, experts.weights_of(expert), end - begin)
        of_tokens = partition(plan, tokens, not plan.swap_ab, walk, -m0)
        for k_step in cutlass.range(job.k_steps, unroll=1):
            wait(empty + stage, phase)
            announce(plan, full + stage)
            load(plan, of_weights, at_n, k_step, stage, full)
            load(plan, of_tokens, Int32(0), k_step, stage, full)
            stage, phase = advance(plan, (stage, phase))
        tile = tile + job.step


@cute.jit
def partition_weights(plan: cutlass.Constexpr, weights: tuple, expert: Int32, rows: Int32):
    """(atom, shared stages, tiles in memory, multicast mask, cache policy) of one expert's weights."""
    atom, coords, shared = weights
    tiles = cute.local_tile(coords, (plan.tile_n, plan.tile_k), (None, None, None))
    in_shared, in_memory = cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(tiles, 0, 2)
    )
    policy = Int64(EVICT_NORMAL)
    if rows <= plan.tile_m:  # nobody reads them again
        policy = Int64(EVICT_FIRST)
    return atom, in_shared, in_memory[None, None, None, expert], None, policy


@dataclass
class GroupScales(Packed):
    """Scales that change along K. Strides in elements."""

    a: cute.Pointer
    b: cute.Pointer
    a_stride_m: Int64
    a_stride_k: Int64
    b_stride_n: Int64
    b_stride_k: Int64
    b_stride_expert: Int64


@cute.jit
def load_scales(
    plan: cutlass.Constexpr,
    scales: GroupScales,
    shared: cute.Pointer,
    barriers: tuple,
    tables: cutlass.Constexpr,
    experts: Experts,
    vectors,
    walk: Walk,
    job: Job,
):
    """Warps copy the scales that belong to each stage. Beyond M and N they take the last valid one: those sums are not stored."""
    full, empty = barriers
    lanes = 32 * plan.scale_warps
    lane = cute.arch.thread_idx()[0] - plan.consumers - 32
    g = plan.config.problem.group_size
    last_group = (vectors.k + g - 1) // g - 1
    a_at = cute.make_rmem_tensor((plan.a_scales + lanes - 1) // lanes, Int64)
    b_at = cute.make_rmem_tensor((plan.b_scales + lanes - 1) // lanes, Int64)
    stage, phase = Int32(0), Int32(1)
    expert, tile = Int32(0), job.first
    while tile < tables.first[experts.count]:
        expert = expert_of(tables, experts, tile, expert)
        m0, at_n, _, _ = tile_at(plan, tables, walk, tile, expert)
        of_expert = scales.b.toint() + 4 * Int64(experts.weights_of(expert)) * scales.b_stride_expert
        for i in cutlass.range_constexpr(cute.size(a_at)):
            m = cutlass.min(m0 + lane + lanes * i, vectors.m - 1)
            a_at[i] = scales.a.toint() + 4 * Int64(m) * scales.a_stride_m
        for i in cutlass.range_constexpr(cute.size(b_at)):
            n = cutlass.min(at_n * plan.tile_n + lane + lanes * i, vectors.n - 1)
            if cutlass.const_expr(not plan.b_rows_scaled):  # of blocks
                n = cutlass.min(at_n * plan.tile_n // g + lane + lanes * i, (vectors.n - 1) // g)
            b_at[i] = of_expert + 4 * Int64(n) * scales.b_stride_n
        group = Int32(0)
        for _ in cutlass.range(job.k_steps, unroll=1):
            wait(empty + stage, phase)
            for p in cutlass.range_constexpr(plan.promotions):
                target = shared + stage * plan.scales + p * (plan.scales // plan.promotions) + lane
                a_step, b_step = 4 * scales.a_stride_k, 4 * scales.b_stride_k
                if group >= last_group:
                    a_step, b_step = Int64(0), Int64(0)
                size = Int32(4)
                if group > last_group:  # zeros, which those that TMA puts there do not make NaN
                    size = Int32(0)
                copy_scales(a_at, a_step, size, target, lane, lanes, plan.a_scales)
                copy_scales(b_at, b_step, size, target + plan.a_scales, lane, lanes, plan.b_scales)
                group = group + 1
            cute.arch.cp_async_mbarrier_arrive_noinc(full + stage)
            stage, phase = advance(plan, (stage, phase))
        tile = tile + job.step
