"""The warps that bring scales in groups to each stage.

They bring the scales of A's rows, and for each row of packed weights its block's scale.
"""

# mypy: ignore-errors
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from gemmill.families.gated_mm.config import GROUP
from gemmill.gemm.barriers import wait
from gemmill.gemm.producer import GroupScales, copy_scales
from gemmill.gemm.walk import Job, Walk, advance, rows_back, tile_of


def block_of(n: Int32) -> Int32:
    """The number of the scale that a row of packed weights has (gemmill.formats.gate_up.packed_blocks)."""
    return n // (2 * GROUP) * 2 + n % 16 // 8


@cute.jit
def load_scales(
    plan: cutlass.Constexpr, scales: GroupScales, shared: cute.Pointer, barriers: tuple, vectors, walk: Walk, job: Job
):
    """Warps copy scales as in gemmill.gemm.producer, but in the weights' order.

    Beyond M and N they take the last valid scale.
    """
    full, empty = barriers
    lanes = plan.copying_threads
    lane = cute.arch.thread_idx()[0] - plan.consumers - 32
    last_group = (vectors.k + GROUP - 1) // GROUP - 1
    a_at = cute.make_rmem_tensor((plan.a_scales + lanes - 1) // lanes, Int64)
    b_at = cute.make_rmem_tensor((plan.b_scales + lanes - 1) // lanes, Int64)
    stage, phase = Int32(0), Int32(1)
    tile = job.first
    while tile < walk.tiles():
        at_n, at_m = tile_of(plan, walk, tile)  # the weights are X
        m_first = at_m * plan.tile_m - rows_back(plan, at_m, vectors.m)
        for i in cutlass.range_constexpr(cute.size(a_at)):
            m = cutlass.min(m_first + lane + lanes * i, vectors.m - 1)
            a_at[i] = scales.a.toint() + 4 * (Int64(m) * scales.a_stride_m)
        for i in cutlass.range_constexpr(cute.size(b_at)):
            n = cutlass.min(at_n * plan.tile_n + lane + lanes * i, vectors.n - 1)
            b_at[i] = scales.b.toint() + 4 * (Int64(block_of(n)) * scales.b_stride_n)
        group = Int32(0)
        cute.arch.griddepcontrol_wait()
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
