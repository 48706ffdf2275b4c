"""The way from sums in registers to results in float32: scales, the rounding between the two ops, the activation,
up."""

# mypy: ignore-errors
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from gemmill.families.gated_mm.dsl import arithmetic
from gemmill.gemm.epilogue import finish, shared_values
from gemmill.gemm.sums import column_offset, index, row_offset


def places(plan, box: tuple, thread: Int32) -> list:
    """The places of each result that a thread has of a box.

    Each is (slab, index of its gate, index of its up, row and column of D in the group's part, the thread's row).
    """
    slab, column = box
    lane, warp = thread % 32, thread // 32
    found = []
    if plan.swap_ab:
        slabs = 2 * plan.store_columns // 64
        eighth = lane // 4
        own = eighth // 2 * 4 + warp % 2 * 2 + eighth % 2 + warp // 2 * 16
        for s in range(column * slabs, (column + 1) * slabs):
            for c in range(plan.tile_y // 4):
                place = column_offset(c, lane), 32 * s + own
                found.append((s, index(0, c), index(1, c), place, c))
        return found
    for row in range(2):
        for t in range(column * plan.store_columns // 16, (column + 1) * plan.store_columns // 16):
            for part in range(2):
                for e in range(2):
                    gate = 2 * (4 * t + 2 * part) + e
                    place = row_offset(slab, row, thread), 16 * t + lane % 4 * 4 + 2 * part + e
                    found.append((slab, index(row, gate), index(row, gate + 2), place, row))
    return found


def packed_rows(plan, box: tuple, thread: Int32) -> list:
    """For each result, its gate's and its up's rows of the packed weights, counted in the group's part."""
    _, column = box
    lane = thread % 32
    if plan.swap_ab:
        slabs = 2 * plan.store_columns // 64
        return [
            (row_offset(s, 0, thread), row_offset(s, 1, thread))
            for s in range(column * slabs, (column + 1) * slabs)
            for _ in range(plan.tile_y // 4)
        ]
    return [
        (column_offset(gate, lane), column_offset(gate + 2, lane))
        for _ in range(2)
        for t in range(column * plan.store_columns // 16, (column + 1) * plan.store_columns // 16)
        for part in range(2)
        for e in range(2)
        for gate in (2 * (4 * t + 2 * part) + e,)
    ]


def products(plan, sums: list, vectors: tuple, found: tuple, rows: tuple) -> tuple:
    """Gate and up of one result, rounded to bf16."""
    slab, gate, up, (m, _), _ = found
    of_m = shared_values(vectors[0], m)
    both = [
        finish(plan, sums[slab][at], of_m, shared_values(vectors[1], n), ())
        for at, n in zip((gate, up), rows, strict=True)
    ]
    return arithmetic.rounded_pair(*both)


@cute.jit
def write_values(
    plan: cutlass.Constexpr,
    sums: list,
    vectors: tuple,
    numbers: tuple,
    thread: Int32,
    box: cutlass.Constexpr,
    values: cute.Tensor,
):
    """Finishes the results that a thread has of one box."""
    activation = plan.config.epilogue.activation
    found, rows = places(plan, box, thread), packed_rows(plan, box, thread)
    largest = Float32(0)
    for i in cutlass.range_constexpr(len(found)):
        gate, up = products(plan, sums, vectors, found[i], rows[i])
        gate, inner, up = arithmetic.prepared(activation, gate, up, numbers)
        if cutlass.const_expr(arithmetic.is_sigmoid(activation)):
            total = arithmetic.one_plus_exp(inner)
            largest = arithmetic.larger(largest, total)
            values[i] = arithmetic.times(gate, arithmetic.plain_reciprocal(total), up)
        else:
            values[i] = arithmetic.times(arithmetic.gelu(activation, gate), up)
    if cutlass.const_expr(arithmetic.is_sigmoid(activation)):
        if largest > arithmetic.LARGEST_PLAIN_SUM:
            for i in cutlass.range_constexpr(len(found)):
                gate, up = products(plan, sums, vectors, found[i], rows[i])
                gate, inner, up = arithmetic.prepared(activation, gate, up, numbers)
                total = arithmetic.one_plus_exp(inner)
                values[i] = arithmetic.times(gate, arithmetic.any_reciprocal(total), up)
