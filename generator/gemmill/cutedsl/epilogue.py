"""From sums in registers to D in memory.

The order of operations is that of the other backend (kernels/include/gemmill/plain_epilogue.cuh): integers first, then
b_scales, then a_scales, with the bias added in one fused operation.
"""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import warp

from gemmill.cutedsl.mainloop import column_offset, index, row_offset
from gemmill.cutedsl.packed import Packed
from gemmill.cutedsl.plan import SLAB, STORE_BUFFERS
from gemmill.vocab import EpilogueKind


@dataclass
class Vectors(Packed):
    """What the epilogue reads: scales, bias and zero points of a call."""

    a_scales: cute.Pointer
    b_scales: cute.Pointer
    bias: cute.Pointer
    azp_adj: cute.Pointer
    azp: cute.Pointer
    m: Int32
    n: Int32
    k: Int32
    a_scale_per_row: Int32
    b_scale_per_column: Int32


def element(pointer: cute.Pointer, at: Int32):
    """One value of an array."""
    return cute.make_tensor(pointer, cute.make_layout(1 << 30))[at]


@cute.jit
def of_row(plan: cutlass.Constexpr, v: Vectors, m: Int32):
    """(scale, zero point) of a row of A; beyond the last, those of the last."""
    m = cutlass.min(m, v.m - 1)
    scale, azp = Float32(1), Int32(1)
    if cutlass.const_expr(not plan.grouped):
        scale = element(v.a_scales, m * v.a_scale_per_row)
    if cutlass.const_expr(plan.epilogue is EpilogueKind.SCALED_AZP_PER_TOKEN):
        if v.azp.toint() != 0:
            azp = element(v.azp, m)
    return scale, azp


@cute.jit
def of_column(plan: cutlass.Constexpr, v: Vectors, n: Int32):
    """(scale, bias, column sum) of a column of B; beyond the last, those of the last."""
    n = cutlass.min(n, v.n - 1)
    scale, bias, adj = Float32(1), Float32(0), Int32(0)
    if cutlass.const_expr(not plan.grouped):
        scale = element(v.b_scales, n * v.b_scale_per_column)
    if cutlass.const_expr(plan.epilogue.takes_bias):
        if v.bias.toint() != 0:
            bias = element(v.bias, n).to(Float32)
    if cutlass.const_expr(plan.epilogue.takes_azp):
        adj = element(v.azp_adj, n)
    return scale, bias, adj


@cute.jit
def finish(plan: cutlass.Constexpr, total, of_m: tuple, of_n: tuple):
    """One value of D, still in FP32."""
    a_scale, azp = of_m
    b_scale, bias, adj = of_n
    if cutlass.const_expr(plan.epilogue is EpilogueKind.SCALED_AZP):
        total = total - adj
    if cutlass.const_expr(plan.epilogue is EpilogueKind.SCALED_AZP_PER_TOKEN):
        total = total - adj * azp
    value = total.to(Float32)
    if cutlass.const_expr(not plan.grouped):
        value = value * b_scale
        if cutlass.const_expr(not plan.epilogue.takes_bias):
            value = a_scale * value
        else:
            value = cute.math.fma(a_scale, value, bias)
    elif cutlass.const_expr(plan.epilogue.takes_bias):
        value = value + bias
    return value


@cute.jit
def store(
    plan: cutlass.Constexpr,
    sums: cute.Tensor,
    v: Vectors,
    shared: cute.Tensor,
    copies: tuple,
    place: tuple,
    origin: tuple,
):
    """Stores a group's sums by TMA, box by box: 64 rows of X by `store_columns` rows of Y. TMA leaves out what is beyond D."""
    to_shared, store_d, from_shared, to_global = copies
    group, thread = place
    x0, y0 = origin
    lane = thread % 32
    columns = plan.store_columns
    buffer = 0
    values = cute.make_rmem_tensor(columns // 2, Float32)
    out = cute.make_rmem_tensor(columns // 2, shared.element_type)
    target = to_shared.get_slice(thread).partition_D(shared)
    source = to_shared.retile(cute.make_tensor(out.iterator, cute.make_layout(((2, 2, columns // 8), 1, 1))))
    for box in cutlass.range_constexpr(plan.tile_y // columns):
        of_y = []
        for c in cutlass.range_constexpr(columns // 4):
            at = y0 + box * columns + column_offset(c, lane)
            of_y.append(of_row(plan, v, at) if cutlass.const_expr(plan.swap_ab) else of_column(plan, v, at))
        for slab in cutlass.range_constexpr(plan.slabs):
            for row in cutlass.range_constexpr(2):
                at = x0 + row_offset(slab, row, thread)
                of_x = of_column(plan, v, at) if cutlass.const_expr(plan.swap_ab) else of_row(plan, v, at)
                for c in cutlass.range_constexpr(columns // 4):
                    total = sums[index(plan, slab, row, box * columns // 4 + c)]
                    of_m, of_n = (of_y[c], of_x) if cutlass.const_expr(plan.swap_ab) else (of_x, of_y[c])
                    values[c // 2 * 4 + row * 2 + c % 2] = finish(plan, total, of_m, of_n)
            out.store(values.load().to(shared.element_type))
            if thread < 32:
                cute.arch.cp_async_bulk_wait_group(STORE_BUFFERS - 1, read=True)
            cute.arch.barrier(barrier_id=1 + group, number_of_threads=128)
            cute.copy(to_shared, source, target[None, None, None, buffer])
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=1 + group, number_of_threads=128)
            if cute.arch.make_warp_uniform(thread // 32) == 0:
                at_box = (x0 // SLAB + slab, y0 // columns + box)
                cute.copy(store_d, from_shared[None, buffer], to_global[None, at_box])
                cute.arch.cp_async_bulk_commit_group()
            buffer = (buffer + 1) % STORE_BUFFERS
