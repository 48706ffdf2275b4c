"""From sums in registers to D in memory.

The order of operations is that of the other backend (plain_epilogue.cuh): integers first, then
b_scales, then a_scales, with the bias added in one fused operation.
"""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync

from gemmill.gemm.limits import SLAB
from gemmill.gemm.lowering import element_type_of, finished
from gemmill.gemm.packed import Packed
from gemmill.gemm.plan import Plan
from gemmill.gemm.sums import column_offset, index, row_offset


@dataclass
class Vectors(Packed):
    """What the standard epilogues read: scales, bias and zero points of a call."""

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

    scalars = ()

    def read(self, plan: Plan, given, at: Int32):
        """An input's value of one row or column, as it is stored."""
        return {"a_scale": a_scale_of, "b_scale": b_scale_of, "bias": bias_of, "azp_adj": azp_adj_of, "azp": azp_of}[
            given.name
        ](self, at)


def vectors_of_call(x, m: Int32, **given: cute.Pointer) -> Vectors:
    """The vectors of a call with `m` rows of A. A bias and zero points that are not given are null."""
    null = cute.make_ptr(Int32, 0, cute.AddressSpace.gmem, assumed_align=4)
    more = {"bias": null, "azp_adj": null, "azp": null, **given}
    flags = {"a_scale_per_row": x.a_scale_per_row, "b_scale_per_column": x.b_scale_per_column}
    return Vectors(a_scales=x.a_scales, b_scales=x.b_scales, m=m, n=x.n, k=x.k, **more, **flags)


def a_scale_of(v: Vectors, m: Int32):
    """The scale of a row of A."""
    return element(v.a_scales, m * v.a_scale_per_row)


def b_scale_of(v: Vectors, n: Int32):
    """The scale of a column of B."""
    return element(v.b_scales, n * v.b_scale_per_column)


@cute.jit
def bias_of(v: Vectors, n: Int32):
    """What is added to a column of D: 0 where there is no bias."""
    bias = v.bias.dtype(0)
    if v.bias.toint() != 0:
        bias = element(v.bias, n)
    return bias


def azp_adj_of(v: Vectors, n: Int32):
    """The sum of a column of B."""
    return element(v.azp_adj, n)


@cute.jit
def azp_of(v: Vectors, m: Int32):
    """The zero point of a row of A: 1 where it is in the sums of columns already."""
    azp = Int32(1)
    if v.azp.toint() != 0:
        azp = element(v.azp, m)
    return azp


def element(pointer: cute.Pointer, at: Int32):
    """One value of an array."""
    return cute.make_tensor(pointer, cute.make_layout(1 << 30))[at]


def of_row(plan: Plan, v, m: Int32) -> tuple:
    """The epilogue's inputs of a row of A; beyond the last, those of the last."""
    m = cutlass.min(m, v.m - 1)
    return tuple(v.read(plan, given, m) for given in plan.m_fields)


def of_column(plan: Plan, v, n: Int32) -> tuple:
    """The epilogue's inputs of a column of B; beyond the last, those of the last."""
    n = cutlass.min(n, v.n - 1)
    return tuple(v.read(plan, given, n) for given in plan.n_fields)


def finish(plan: Plan, total, of_m: tuple, of_n: tuple, scalars: tuple):
    """One value of D, still in FP32."""
    return finished(plan.traced, total, of_m, of_n, scalars)


@cute.jit
def fetch(plan: cutlass.Constexpr, v, thread: Int32, origin: tuple):
    """Starts loads of what a tile's epilogue reads: each thread holds a few rows and columns through the main loop."""
    m0, n0 = (origin[1], origin[0]) if cutlass.const_expr(plan.swap_ab) else origin
    rows = [of_row(plan, v, m0 + thread + 128 * i) for i in range((plan.group_m + 127) // 128)]
    columns = [of_column(plan, v, n0 + thread + 128 * i) for i in range((plan.group_n + 127) // 128)]
    return rows, columns


def vectors_of(plan: Plan, shared: cute.Pointer, scalars: tuple = ()) -> tuple:
    """The tensors that warps share, one for each input: of rows, then of columns; and the scalars."""
    tensors, offset = [], 0
    for fields, count in ((plan.m_fields, plan.group_m), (plan.n_fields, plan.group_n)):
        side = []
        for given in fields:
            kind = element_type_of(given.stored)
            side.append(cute.make_tensor(cute.recast_ptr(shared + offset, dtype=kind), cute.make_layout(count)))
            offset += count
        tensors.append(side)
    return (*tensors, scalars)


@cute.jit
def share(plan: cutlass.Constexpr, held: tuple, shared: tuple, place: tuple):
    """Puts into shared memory what the threads of a group hold, so that each can read any row and column of the tile.

    After this the buffers are free of the tile before, too.
    """
    _, thread = place
    for side in cutlass.range_constexpr(2):
        count = (plan.group_m, plan.group_n)[side]
        for i in cutlass.range_constexpr(len(held[side])):
            at = thread + 128 * i
            if cutlass.const_expr(count % 128 == 0) or at < count:
                for field in cutlass.range_constexpr(len(held[side][i])):
                    value = held[side][i][field]
                    shared[side][field][at] = value.to(shared[side][field].element_type)
    wait_for_buffers(place)


def shared_values(tensors: list, at: Int32) -> tuple:
    """The inputs of one row or column."""
    return tuple(tensor[at] for tensor in tensors)


def boxes_of(plan: Plan) -> list:
    """The boxes of a group's part of the tile, as (column, slab), in the order in which they are stored."""
    return [(column, slab) for column in range(plan.tile_y // plan.store_columns) for slab in range(plan.slabs)]


@cute.jit
def store(plan: cutlass.Constexpr, sums: list, held: tuple, target: tuple, place: tuple, origin: tuple):
    """Stores a group's sums by TMA, in boxes of 64 rows of X by `store_columns` rows of Y. TMA leaves out what is beyond D."""
    shared, vectors, copies = target
    _, thread = place
    boxes = boxes_of(plan)
    if cutlass.const_expr(not plan.meets_end):
        share(plan, held, vectors, place)
    if cutlass.const_expr(plan.stores_early):
        write_slab(plan, sums, target, thread, plan.slabs - 1)
        send(plan, target, place, origin, boxes)
    else:
        for first in cutlass.range_constexpr(0, len(boxes), plan.store_buffers):
            together = boxes[first : first + plan.store_buffers]
            if cutlass.const_expr(first > 0):
                wait_for_buffers(place)
            for buffer in cutlass.range_constexpr(len(together)):
                write_box(plan, sums, vectors, shared[None, None, buffer], copies[0], thread, together[buffer])
            send(plan, target, place, origin, together)


@cute.jit
def begin(plan: cutlass.Constexpr, sums: list, held: tuple, target: tuple, place: tuple, final: cutlass.Constexpr):
    """The part of `store` that comes while the last multiplications run: vectors are shared. Where the plan stores
    early, the boxes of the slab follow that made `final` slabs final."""
    if cutlass.const_expr(final == 0):
        share(plan, held, target[1], place)
    elif cutlass.const_expr(plan.stores_early):
        write_slab(plan, sums, target, place[1], final - 1)


@cute.jit
def write_slab(plan: cutlass.Constexpr, sums: list, target: tuple, thread: Int32, slab: cutlass.Constexpr):
    """Finishes the sums of one slab, where each box of the tile has a buffer of its own."""
    shared, vectors, copies = target
    boxes = boxes_of(plan)
    for buffer in cutlass.range_constexpr(len(boxes)):
        if cutlass.const_expr(boxes[buffer][1] == slab):
            write_box(plan, sums, vectors, shared[None, None, buffer], copies[0], thread, boxes[buffer])


@cute.jit
def wait_for_buffers(place: tuple):
    """Waits until TMA has read what it was sent."""
    group, thread = place
    if thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)
    cute.arch.barrier(barrier_id=1 + group, number_of_threads=128)


@cute.jit
def send(plan: cutlass.Constexpr, target: tuple, place: tuple, origin: tuple, together: cutlass.Constexpr):
    """One warp has TMA store the boxes that the group has written."""
    group, thread = place
    shared, _, copies = target
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.barrier(barrier_id=1 + group, number_of_threads=128)
    if cute.arch.make_warp_uniform(thread // 32) == 0:
        _, store_d, coords = copies
        in_tile = cute.zipped_divide(cute.domain_offset(origin, coords), (SLAB, plan.store_columns))
        from_shared, to_global = cpasync.tma_partition(
            store_d, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), in_tile
        )
        for buffer in cutlass.range_constexpr(len(together)):
            column, slab = together[buffer]
            cute.copy(store_d, from_shared[None, buffer], to_global[None, (slab, column)])
        cute.arch.cp_async_bulk_commit_group()


@cute.jit
def write_box(
    plan: cutlass.Constexpr,
    sums: list,
    vectors: tuple,
    shared: cute.Tensor,
    to_shared: cute.TiledCopy,
    thread: Int32,
    box: cutlass.Constexpr,
):
    """Finishes the sums of one box and writes them to shared memory, as rows of D."""
    column_box, slab = box
    columns = plan.store_columns
    values = cute.make_rmem_tensor(columns // 2, Float32)
    out = cute.make_rmem_tensor(columns // 2, shared.element_type)
    for c in cutlass.range_constexpr(columns // 4):
        y = column_box * columns + column_offset(c, thread % 32)
        for row in cutlass.range_constexpr(2):
            x = row_offset(slab, row, thread)
            m, n = (y, x) if cutlass.const_expr(plan.swap_ab) else (x, y)
            of_m, of_n = shared_values(vectors[0], m), shared_values(vectors[1], n)
            total = sums[slab][index(row, column_box * columns // 4 + c)]
            values[c // 2 * 4 + row * 2 + c % 2] = finish(plan, total, of_m, of_n, vectors[2])
    out.store(values.load().to(shared.element_type))
    source = to_shared.retile(cute.make_tensor(out.iterator, cute.make_layout(((2, 2, columns // 8), 1, 1))))
    cute.copy(to_shared, source, to_shared.get_slice(thread).partition_D(shared))


@cute.jit
def park(plan: cutlass.Constexpr, sums: list, buffer: cute.Pointer, place: tuple):
    """Writes a slice's partial sums to shared memory, where the stages were: one row for each row of Y."""
    group, thread = place
    cute.arch.barrier(barrier_id=3, number_of_threads=plan.consumers)  # every group has read the stages
    lane = thread % 32
    for slab in cutlass.range_constexpr(plan.slabs):
        for row in cutlass.range_constexpr(2):
            x = group * plan.group_rows + row_offset(slab, row, thread)
            for column in cutlass.range_constexpr(plan.tile_y // 4):
                at = column_offset(column, lane) * plan.partial_pitch + x
                element_at(buffer, at)[0] = sums[slab][index(row, column)]


def element_at(pointer: cute.Pointer, at: Int32) -> cute.Tensor:
    """A tensor of one value of an array."""
    return cute.make_tensor(pointer + at, cute.make_layout(1))


@cute.jit
def meet(plan: cutlass.Constexpr, buffer: cute.Pointer, v, d: cute.Pointer, ldd: Int64, place: tuple, origin: tuple):
    """The CTAs of a cluster divide a tile among them. Each adds up all slices in the order of K and stores rows of D
    along n."""
    thread, rank, splits = place
    n0, m0 = origin
    kind = buffer.dtype
    out = cute.make_rmem_tensor(4, d.dtype)
    quads_of_row = plan.tile_x // 4
    for quad in cutlass.range(
        rank * plan.consumers + thread, plan.tile_y * quads_of_row, splits * plan.consumers, unroll=1
    ):
        y, x = quad // quads_of_row, quad % quads_of_row * 4
        m, n = m0 + y, n0 + x
        if m < v.m and n < v.n:
            total = [kind(0) for _ in range(4)]
            for s in cutlass.range(splits, unroll=1):
                part = read_remote(buffer + (y * plan.partial_pitch + x), s, kind)
                total = [total[i] + part[i] for i in range(4)]
            of_m = of_row(plan, v, m)
            values = [finish(plan, total[i], of_m, of_column(plan, v, n + i), v.scalars) for i in range(4)]
            for i in cutlass.range_constexpr(4):
                out[i] = values[i].to(d.dtype)
            target = d + (Int64(m) * ldd + n)
            if n + 4 <= v.n:
                cute.autovec_copy(out, cute.make_tensor(target.align(8), cute.make_layout(4)))
            else:
                for i in cutlass.range_constexpr(3):
                    if n + i < v.n:
                        element_at(target, Int32(i))[0] = out[i]


@cute.jit
def read_remote(pointer: cute.Pointer, rank: Int32, kind: type):
    """Four values of another CTA's shared memory."""
    bits = "f32" if kind is Float32 else "s32"
    return cute.arch.inline_ptx(
        f"ld.shared::cluster.v4.{bits} {{{{$w0}}, {{$w1}}, {{$w2}}, {{$w3}}}}, [{{$r0}}];",
        write_only_types=[kind] * 4,
        read_only_args=[cute.arch.map_dsmem_ptr(pointer, rank).toint()],
    )
