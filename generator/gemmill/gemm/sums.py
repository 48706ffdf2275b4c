"""A thread's sums of one 64-row slab: where each lies, and how partial ones are added to them.

They lie as WGMMA leaves them: for each 8 columns, two rows (8 apart) of two neighbouring columns. `index` is the only
place that knows it.
"""

# mypy: ignore-errors
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from gemmill.gemm.limits import SLAB


def index(row: int, column: int) -> int:
    """Where a thread keeps row 0 or 1 of a slab and its `column`-th column."""
    return column // 2 * 4 + row * 2 + column % 2


def column_offset(column: int, lane: Int32) -> Int32:
    """The column of the tile that a thread's `column`-th column is."""
    return column // 2 * 8 + lane % 4 * 2 + column % 2


def row_offset(slab: int, row: int, thread: Int32) -> Int32:
    """The row of the group that a thread's row 0 or 1 of a slab is."""
    return slab * SLAB + thread // 32 * 16 + thread % 32 // 4 + row * 8


@cute.jit
def read_factors(
    plan: cutlass.Constexpr, factors: cute.Tensor, scales: cute.Tensor, slab: cutlass.Constexpr, place: tuple
):
    """Reads what one group of K multiplies a thread's sums of a slab by: factors of its two rows, then of its columns.

    A block's scale is multiplied into the side that A's scales are on.
    """
    group, thread, n0 = place
    g = plan.group_size
    of_b = plan.a_scales
    for r in cutlass.range_constexpr(2):
        row = group * plan.group_rows + row_offset(slab, r, thread)
        if cutlass.const_expr(plan.b_rows_scaled):
            factors[r] = scales[of_b + row if plan.swap_ab else row]
        elif cutlass.const_expr(plan.swap_ab and g < SLAB):  # a warp's 16 rows lie in one block, as n0 is whole blocks
            factors[r] = scales[of_b + (group * plan.group_rows + slab * SLAB + thread // 32 * 16) // g]
        elif cutlass.const_expr(plan.swap_ab):
            factors[r] = scales[of_b + (n0 % g + group * plan.group_rows + slab * SLAB) // g]
        else:
            for block in cutlass.range_constexpr(plan.b_scales):
                factors[r * plan.b_scales + block] = scales[row] * scales[of_b + block]
    if cutlass.const_expr(plan.b_rows_scaled or plan.swap_ab):
        for c in cutlass.range_constexpr(plan.tile_y // 4):
            column = column_offset(c, thread % 32)
            factors[2 + c] = scales[column if plan.swap_ab else of_b + column]


@cute.jit
def apply(plan: cutlass.Constexpr, sums: cute.Tensor, partial: cute.Tensor, factors: cute.Tensor, n0: Int32):
    """Adds partial sums of one slab and one group of K, times their scales, to the sums."""
    g = plan.group_size
    for row in cutlass.range_constexpr(2):
        for column in cutlass.range_constexpr(plan.tile_y // 4):
            i = index(row, column)
            value = partial[i].to(Float32)
            if cutlass.const_expr(plan.b_rows_scaled or plan.swap_ab):
                sums[i] = sums[i] + value * (factors[row] * factors[2 + column])
            elif cutlass.const_expr(plan.blocks_aligned):
                sums[i] = sums[i] + value * factors[row * plan.b_scales + column // 2 * 8 // g]
            else:
                factor = factors[row * plan.b_scales]
                if n0 % g + column // 2 * 8 >= g:
                    factor = factors[row * plan.b_scales + 1]
                sums[i] = sums[i] + value * factor


@cute.jit
def add(sums: cute.Tensor, partial: cute.Tensor):
    """Adds partial sums to the sums."""
    for i in cutlass.range_constexpr(cute.size(sums)):
        sums[i] = sums[i] + partial[i]
