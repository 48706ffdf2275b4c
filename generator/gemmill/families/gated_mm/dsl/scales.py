"""The warps that bring scales in groups to each stage.

They bring the scales of A's rows, and for each row of packed weights its block's scale.
"""

# mypy: ignore-errors
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from gemmill.families.gated_mm.dsl.plan import Plan
from gemmill.gemm.pipeline import Pipeline
from gemmill.gemm.producer import GroupScales, copy_scales
from gemmill.gemm.walk import Tiles, rows_back


def scale_of(plan: Plan, n: Int32) -> Int32:
    """The number of the scale that a row of packed weights has (gemmill.formats.gate_up.packed_blocks)."""
    if plan.config.operands.rows_scaled:
        return n
    return n // (2 * plan.promotion_k) * 2 + n % 16 // 8


@cute.jit
def load_scales(
    plan: cutlass.Constexpr,
    scales: GroupScales,
    shared: cute.Pointer,
    pipeline: Pipeline,
    vectors,
    tiles: Tiles,
):
    """Warps copy scales as in gemmill.gemm.producer, but in the weights' order.

    Where weights are columns of the tile, these are scales of its blocks. Beyond M and N they take the last valid scale.
    """
    lanes = plan.copying_threads
    lane = cute.arch.thread_idx()[0] - plan.consumers - 32
    g = plan.promotion_k
    last_group = (vectors.k + g - 1) // g - 1
    a_at = cute.make_rmem_tensor((plan.a_scales + lanes - 1) // lanes, Int64)
    b_at = cute.make_rmem_tensor((plan.b_scales + lanes - 1) // lanes, Int64)
    state = pipeline.producer_start()
    tile = tiles.first(0)
    while tiles.has(tile):
        at_x, at_y = tiles.at(tile)
        at_m, at_n = (at_y, at_x) if plan.swap_ab else (at_x, at_y)
        m_first = at_m * plan.tile_m - rows_back(plan, at_m, vectors.m)
        for i in cutlass.range_constexpr(cute.size(a_at)):
            m = cutlass.min(m_first + lane + lanes * i, vectors.m - 1)
            a_at[i] = scales.a.toint() + 4 * (Int64(m) * scales.a_stride_m)
        for i in cutlass.range_constexpr(cute.size(b_at)):
            n = scale_of(plan, cutlass.min(at_n * plan.tile_n + lane + lanes * i, vectors.n - 1))
            if cutlass.const_expr(not plan.swap_ab):
                n = at_n * plan.tile_n // (2 * g) * 2 + lane + lanes * i
                n = cutlass.min(n, (vectors.n + 2 * g - 1) // (2 * g) * 2 - 1)
            b_at[i] = scales.b.toint() + 4 * (Int64(n) * scales.b_stride_n)
        group = Int32(0)
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
