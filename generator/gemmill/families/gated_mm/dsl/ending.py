"""The way from results in float32 to D and its scales in memory."""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup

from gemmill.families.gated_mm.config import GROUP, Result
from gemmill.families.gated_mm.dsl import arithmetic
from gemmill.families.gated_mm.dsl.values import places, write_values
from gemmill.gemm import epilogue
from gemmill.gemm.packed import Packed
from gemmill.gemm.sums import column_offset, row_offset


@dataclass
class Ending(Packed):
    """What an ending reads and writes beside D."""

    static_scale: cute.Pointer
    out_scales: cute.Pointer
    out_scale_stride_m: Int64
    out_scale_stride_g: Int64
    groups: Int32
    """Scales of a row."""
    alpha: Float32
    limit: Float32
    beta: Float32


def ending_of(plan, x) -> Ending:
    """What the ending of a call reads and writes."""
    strides, groups = (x.out_scale_stride_m, x.out_scale_stride_g), x.n // (2 * plan.result_group)
    return Ending(x.static_scale, x.out_scales, *strides, groups, x.alpha, x.limit, x.beta)


@dataclass
class Kept(Packed):
    """Where D lies, and which of its rows a tile may write: those of one expert."""

    d: cute.Pointer
    ldd: Int64
    n: Int32
    """Columns of D."""
    begin: Int32
    end: Int32


def layout_of(plan, element: type) -> cute.ComposedLayout:
    """Boxes of D on their way out, of all consumer groups. They hold rows of D, whichever operand these belong to."""
    kinds = warpgroup.SmemLayoutAtomKind
    kind = {128: kinds.K_SW128, 64: kinds.K_SW64, 32: kinds.K_SW32, 16: kinds.K_INTER}[
        plan.store_columns * plan.result_bytes
    ]
    shape = (plan.store_rows, plan.store_columns, plan.store_buffers * plan.consumer_groups)
    return cute.tile_to_shape(warpgroup.make_smem_layout_atom(kind, element), shape, order=(0, 1, 2))


def storage_of(plan) -> dict:
    """Shared memory for the maxima of groups that warps share, by name."""
    return {"maxima": cute.struct.MemRange[Float32, max(plan.maximum_words, 4)]}


@cute.jit
def store(
    plan: cutlass.Constexpr,
    sums: list,
    held: tuple,
    target: tuple,
    ending: Ending,
    rows,
    place: tuple,
    origin: tuple,
    turn: Int32,
):
    """Finishes and stores a group's part of a tile by TMA, which leaves out what is beyond D.

    `rows` is how many rows D has, or the `Kept` of one expert. `turn` alternates from tile to tile.
    """
    _, vectors, _, _ = target
    _, thread = place
    if cutlass.const_expr(not plan.meets_end):
        epilogue.share(plan, held, vectors, place)
    x0, y0 = origin
    m0, column0 = (y0, x0 // 2) if cutlass.const_expr(plan.swap_ab) else (x0, y0 // 2)
    if cutlass.const_expr(plan.by_group and plan.swap_ab):
        store_groups_of_columns(plan, sums, target, ending, rows, place, (m0, column0), turn)
    else:
        by = Float32(1)
        if cutlass.const_expr(plan.result is Result.STATIC):
            by = arithmetic.any_reciprocal(epilogue.element(ending.static_scale, Int32(0)))
        of_tile = plan.boxes
        for first in cutlass.range_constexpr(0, len(of_tile), plan.store_buffers):
            together = of_tile[first : first + plan.store_buffers]
            if cutlass.const_expr(first > 0):
                epilogue.wait_for_buffers(place)
            for buffer in cutlass.range_constexpr(len(together)):
                write_box(plan, sums, target, ending, rows, thread, (m0, column0), by, (together[buffer], buffer))
            send(plan, target, place, (m0, column0), together, rows)


@cute.jit
def write_box(
    plan: cutlass.Constexpr,
    sums: list,
    target: tuple,
    ending: Ending,
    rows,
    thread: Int32,
    origin: tuple,
    by: Float32,
    which: cutlass.Constexpr,
):
    """Finishes one box and writes it to shared memory."""
    boxes, vectors, _, _ = target
    box, _ = which
    found = places(plan, box, thread)
    values = cute.make_rmem_tensor(len(found), Float32)
    write_values(plan, sums, vectors, (ending.alpha, ending.limit, ending.beta), thread, box, values)
    if cutlass.const_expr(plan.by_group):
        own = plan.result_group // 4  # a thread's of a group: four lanes have a row
        for i in cutlass.range_constexpr(0, len(found), own):
            row, first = divmod(i, len(found) // 2)
            maximum = Float32(0)
            for j in cutlass.range_constexpr(own):
                maximum = arithmetic.larger(maximum, values[i + j])
            for lanes in cutlass.range_constexpr(2):
                maximum = arithmetic.larger(maximum, cute.arch.shuffle_sync_bfly(maximum, 1 << lanes))
            scale, shrink, divisor = arithmetic.scale_of(maximum)
            divide(values, range(i, i + own), shrink, divisor)
            at = origin[0] + row_offset(box[0], row, thread)
            group = (origin[1] + box[1] * plan.store_columns) // plan.result_group + first // own
            if cutlass.const_expr(plan.by_expert):
                if thread % 4 == 0 and at >= rows.begin and at < rows.end and group < ending.groups:
                    store_scale(ending, at, group, scale)
            else:
                if thread % 4 == 0 and at < rows and group < ending.groups:
                    store_scale(ending, at, group, scale)
    elif cutlass.const_expr(plan.result is Result.STATIC):
        for i in cutlass.range_constexpr(len(found)):
            values[i] = arithmetic.times(values[i], by)
    write(plan, boxes, values, found, which)


@cute.jit
def divide(values: cute.Tensor, which: cutlass.Constexpr, shrink: Float32, divisor: Float32):
    """Divides some values by what `scale_of` gave."""
    if shrink != Float32(1.0):
        for i in cutlass.range_constexpr(which.start, which.stop):
            values[i] = arithmetic.times(values[i], shrink)
    reciprocal = arithmetic.plain_reciprocal(divisor)
    for i in cutlass.range_constexpr(which.start, which.stop):
        values[i] = arithmetic.quotient(values[i], divisor, reciprocal)


@cute.jit
def store_scale(ending: Ending, m: Int32, group: Int32, scale: Float32):
    """Writes one scale of a row.

    The caller has made sure that both are D's: a tile of a pair may lie beyond D's columns.
    """
    at = Int64(m) * ending.out_scale_stride_m + Int64(group) * ending.out_scale_stride_g
    cute.make_tensor(ending.out_scales + at, cute.make_layout(1))[0] = scale


@cute.jit
def store_groups_of_columns(
    plan: cutlass.Constexpr,
    sums: list,
    target: tuple,
    ending: Ending,
    rows,
    place: tuple,
    origin: tuple,
    turn: Int32,
):
    """Finishes and stores a group's part of a tile where rows of D are columns of the tile.

    Warps that have results of a group tell each other their maxima: all, or those of a consumer group.
    """
    boxes, vectors, _, maxima = target
    group, thread = place
    warp, lane = thread // 32, thread % 32
    columns, warps = plan.tile_y // 4, plan.consumers // 32
    first, sharing, sends = Int32(0), warps, group == 0 and warp == 0
    if cutlass.const_expr(plan.result_group != GROUP):
        first, sharing, sends = group * 4, 4, warp == 0
    all_of_them = [places(plan, box, thread) for box in plan.boxes]
    values = [cute.make_rmem_tensor(len(found), Float32) for found in all_of_them]
    own = maxima + turn * (warps * plan.tile_y)
    for i in cutlass.range_constexpr(len(plan.boxes)):
        write_values(plan, sums, vectors, (ending.alpha, ending.limit, ending.beta), thread, plan.boxes[i], values[i])
    for c in cutlass.range_constexpr(columns):
        maximum = Float32(0)
        for i in cutlass.range_constexpr(len(plan.boxes)):
            for j in cutlass.range_constexpr(c, len(all_of_them[i]), columns):
                maximum = arithmetic.larger(maximum, values[i][j])
        for lanes in cutlass.range_constexpr(2, 5):
            maximum = arithmetic.larger(maximum, cute.arch.shuffle_sync_bfly(maximum, 1 << lanes))
        at = (group * 4 + warp) * plan.tile_y + column_offset(c, lane)
        if lane < 4:
            epilogue.element_at(own, at)[0] = maximum
    cute.arch.barrier(barrier_id=3, number_of_threads=plan.consumers)
    for c in cutlass.range_constexpr(columns):
        y = column_offset(c, lane)
        maximum = Float32(0)
        for other in cutlass.range_constexpr(sharing):
            maximum = arithmetic.larger(maximum, epilogue.element_at(own, (first + other) * plan.tile_y + y)[0])
        scale, shrink, divisor = arithmetic.scale_of(maximum)
        for i in cutlass.range_constexpr(len(plan.boxes)):
            for j in cutlass.range_constexpr(c, len(all_of_them[i]), columns):
                divide(values[i], range(j, j + 1), shrink, divisor)
        at, of_row = origin[0] + y, origin[1] // plan.result_group
        if cutlass.const_expr(plan.by_expert):
            if sends and lane < 4 and at >= rows.begin and at < rows.end and of_row < ending.groups:
                store_scale(ending, at, of_row, scale)
        else:
            if sends and lane < 4 and at < rows and of_row < ending.groups:
                store_scale(ending, at, of_row, scale)
    for i in cutlass.range_constexpr(len(plan.boxes)):
        write(plan, boxes, values[i], all_of_them[i], (plan.boxes[i], i))
    send(plan, target, place, origin, plan.boxes, rows)


def swizzled(plan, offset: Int32) -> Int32:
    """The place where TMA looks for a byte of a box: its row's chunks of 16 bytes are permuted."""
    chunks = plan.store_columns * plan.result_bytes // 16
    return offset ^ ((offset >> 7 & chunks - 1) << 4)


@cute.jit
def write(plan: cutlass.Constexpr, boxes: cute.Pointer, values: cute.Tensor, found: list, which: cutlass.Constexpr):
    """Writes a box's values to shared memory, in D's type: four of a row at a time, or one alone."""
    (_, column), buffer = which
    size, width = plan.result_bytes, plan.store_columns
    first = buffer * plan.store_rows * width
    side = 1 if plan.swap_ab else 4
    row0 = 0 if plan.swap_ab else which[0][0] * 64
    for i in cutlass.range_constexpr(0, len(found), side):
        m, n = found[i][3]
        at = boxes.toint() + swizzled(plan, (first + (m - row0) * width + (n - column * width)) * size)
        if cutlass.const_expr(plan.swap_ab and size == 1):
            word = arithmetic.codes([values[i], Float32(0), Float32(0), Float32(0)])
            put("{\n.reg .b32 w;\nmov.b32 w, {$r1};\nst.shared.b8 [{$r0}], w;\n}", at, word)
        elif cutlass.const_expr(plan.swap_ab):
            word = arithmetic.halves(values[i], Float32(0))
            put("{\n.reg .b16 l, h;\nmov.b32 {l, h}, {$r1};\nst.shared.b16 [{$r0}], l;\n}", at, word)
        elif cutlass.const_expr(size == 1):
            put("st.shared.b32 [{$r0}], {$r1};", at, arithmetic.codes([values[i + j] for j in range(4)]))
        else:
            words = [arithmetic.halves(values[i + j], values[i + j + 1]) for j in (0, 2)]
            put("st.shared.v2.b32 [{$r0}], {{$r1}, {$r2}};", at, *words)


def put(text: str, *given) -> None:
    """Stores values by an instruction."""
    cute.arch.inline_ptx(text, read_only_args=list(given))


@cute.jit
def send(plan: cutlass.Constexpr, target: tuple, place: tuple, origin: tuple, together: cutlass.Constexpr, rows):
    """Stores the boxes that the group has written. TMA stores an expert's where all of their rows are its own."""
    if cutlass.const_expr(not plan.by_expert):
        send_whole(plan, target, place, origin, together)
    else:
        if origin[0] >= rows.begin and origin[0] + plan.group_m <= rows.end:
            send_whole(plan, target, place, origin, together)
        else:
            group, thread = place
            cute.arch.barrier(barrier_id=1 + group, number_of_threads=128)
            for buffer in cutlass.range_constexpr(len(together)):
                copy_box(plan, target[0], thread, origin, (together[buffer], buffer), rows)


@cute.jit
def copy_box(
    plan: cutlass.Constexpr,
    boxes: cute.Pointer,
    thread: Int32,
    origin: tuple,
    which: cutlass.Constexpr,
    rows: Kept,
):
    """Each thread stores chunks of 16 bytes of a box whose rows are kept."""
    (slab, column), buffer = which
    size = plan.result_bytes
    chunks = plan.store_columns * size // 16
    row0 = 0 if cutlass.const_expr(plan.swap_ab) else slab * plan.store_rows
    for i in cutlass.range_constexpr((plan.store_rows * chunks + 127) // 128):
        at = thread + 128 * i
        m = origin[0] + row0 + at // chunks
        n = origin[1] + column * plan.store_columns + at % chunks * (16 // size)
        if at < plan.store_rows * chunks and m >= rows.begin and m < rows.end and n < rows.n:
            offset = swizzled(plan, buffer * plan.store_rows * plan.store_columns * size + 16 * at)
            cute.arch.inline_ptx(
                "{\n.reg .b32 w0, w1, w2, w3;\n"
                "ld.shared.v4.b32 {w0, w1, w2, w3}, [{$r0}];\n"
                "st.global.v4.b32 [{$r1}], {w0, w1, w2, w3};\n}",
                read_only_args=[boxes.toint() + offset, (rows.d + (Int64(m) * rows.ldd + n)).toint()],
            )


@cute.jit
def send_whole(plan: cutlass.Constexpr, target: tuple, place: tuple, origin: tuple, together: cutlass.Constexpr):
    """One warp has TMA store the boxes that the group has written."""
    group, thread = place
    _, _, (shared, store_d, coords), _ = target
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.barrier(barrier_id=1 + group, number_of_threads=128)
    if cute.arch.make_warp_uniform(thread // 32) == 0:
        in_tile = cute.zipped_divide(cute.domain_offset(origin, coords), (plan.store_rows, plan.store_columns))
        from_shared, to_global = cpasync.tma_partition(
            store_d, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), in_tile
        )
        for buffer in cutlass.range_constexpr(len(together)):
            slab, column = together[buffer]
            cute.copy(store_d, from_shared[None, buffer], to_global[None, (slab, column)])
        cute.arch.cp_async_bulk_commit_group()
