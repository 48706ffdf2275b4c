"""Which rows are which expert's, and the order in which tiles of all experts are visited.

Only the device knows where the rows of an expert begin and end. Every CTA makes the same tables of it in its shared
memory. So the grid depends only on sizes that the host knows, and a captured graph serves every call.
"""

# mypy: ignore-errors
from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from gemmill.gemm import epilogue
from gemmill.gemm.packed import Packed
from gemmill.gemm.walk import Job, WorkTile

BAND = 16
"""Tiles of rows that share a sweep over all columns. What they read of A stays in L2, and weights are read once a
band."""


@dataclass
class Experts(Packed):
    """Where the rows of each expert lie.

    `offsets` holds count + 1 bounds of segments that follow one another. Where each expert has room for `slot` rows,
    `offsets` holds the count of rows that each one uses.
    """

    offsets: cute.Pointer
    words: Int32
    """32-bit words of one offset, of which the lowest counts."""
    mapped: cute.Pointer
    """Which weights are an expert's, -1 for none; null where expert e has weights e."""
    count: Int32
    weights: Int32
    slot: Int32
    """Rows of room for each expert; 0 where segments follow one another."""
    rows: Int32
    """Rows of D."""

    @cute.jit
    def span(self, expert: Int32):
        """The first row of an expert, and the one after its last. Both lie within A, whatever the offsets are."""
        begin, end = expert * self.slot, Int32(0)
        if self.slot != 0:
            end = begin + cutlass.min(cutlass.max(word(self.offsets, expert * self.words), 0), self.slot)
        else:
            begin = cutlass.min(cutlass.max(word(self.offsets, expert * self.words), 0), self.rows)
            end = cutlass.min(cutlass.max(word(self.offsets, (expert + 1) * self.words), begin), self.rows)
        weights = self.weights_of(expert)
        if weights < 0 or weights >= self.weights:
            end = begin
        return begin, end

    @cute.jit
    def weights_of(self, expert: Int32):
        """Which weights are an expert's."""
        weights = expert
        if self.mapped.toint() != 0:
            weights = word(self.mapped, expert)
        return weights


def word(pointer: cute.Pointer, at: Int32):
    """One value of an array."""
    return cute.make_tensor(pointer, cute.make_layout(1 << 30))[at]


@dataclass
class Walk(Packed):
    """The order of clusters' tiles: by expert, within it by band of rows, within that by column."""

    tiles_n: Int32
    band: cute.FastDivmodDivisorV2
    """Tiles in a whole band."""


@dataclass(frozen=True)
class ExpertWorkTile(WorkTile):
    """A consumer group's part of an expert's tile."""

    begin: Int32
    """The expert's first row."""
    end: Int32
    """The row behind its last."""


@dataclass
class Tables:
    """Tables with an entry for each expert, in shared memory."""

    first: cute.Tensor
    """Each expert's first tile; behind the last expert's, how many tiles there are."""
    begin: cute.Tensor
    end: cute.Tensor
    warps: cute.Tensor


@cute.jit
def fill(plan: cutlass.Constexpr, tables: cutlass.Constexpr, experts: Experts, walk: Walk):
    """Makes the tables, with all threads of a CTA."""
    thread, _, _ = cute.arch.thread_idx()
    warp, lane = thread // 32, thread % 32
    before = Int32(0)
    for base in cutlass.range(0, experts.count + 1, plan.threads, unroll=1):
        expert, tiles = base + thread, Int32(0)
        if expert < experts.count:
            begin, end = experts.span(expert)
            tiles = cute.ceil_div(end - begin, plan.tile_m) * walk.tiles_n
            tables.begin[expert] = begin
            tables.end[expert] = end
        total = tiles
        for i in cutlass.range_constexpr(5):
            other = cute.arch.shuffle_sync_up(total, 1 << i, mask_and_clamp=0)
            if lane >= 1 << i:
                total = total + other
        if lane == 31:
            tables.warps[warp] = total
        cute.arch.sync_threads()
        after = before
        for i in cutlass.range_constexpr(plan.threads // 32):
            if i == warp:
                total = total + after
            after = after + tables.warps[i]
        if expert <= experts.count:
            tables.first[expert] = total - tiles
        before = after
        cute.arch.sync_threads()


@cute.jit
def expert_of(tables: cutlass.Constexpr, experts: Experts, index: Int32, expert: Int32):
    """The expert of the `index`-th tile: `expert` or one after it. Whole warps ask together."""
    lane = cute.arch.lane_idx()
    passed = Int32(32)
    while passed == 32:
        at = expert + 1 + lane
        is_before = False
        if at <= experts.count:
            is_before = tables.first[at] <= index
        passed = Int32(cute.arch.popc(cute.arch.vote_ballot_sync(is_before)))
        expert = expert + passed
    return expert


@cute.jit
def tile_at(plan: cutlass.Constexpr, tables: cutlass.Constexpr, walk: Walk, index: Int32, expert: Int32):
    """(first row, tile of columns, rows of the expert: begin and end) of this CTA's part of an expert's `index`-th tile.

    A last tile moves back to lie within A. The rows that it then shares with others are stored twice with the same bits,
    or, being another expert's, not at all.
    """
    begin, end = tables.begin[expert], tables.end[expert]
    tiles_m = cute.ceil_div(end - begin, plan.tile_m)
    m, n = Int32(0), index - tables.first[expert]
    if tiles_m > 1:
        band, inside = [Int32(part) for part in divmod(n, walk.band)]
        width = cutlass.min(Int32(BAND), tiles_m - band * BAND)
        n = ((Float32(inside) + 0.5) * cute.arch.rcp_approx(Float32(width))).to(Int32)
        m = band * BAND + inside - n * width
    if cutlass.const_expr(plan.cluster_size > 1):
        n = n * plan.cluster_size + cute.arch.block_idx_in_cluster()
    m0 = cutlass.max(Int32(0), cutlass.min(begin + m * plan.tile_m, end - plan.tile_m))
    return m0, n, begin, end


@dataclass
class ExpertTiles(Packed):
    """The tiles of all experts as a source for producers and consumers."""

    experts: Experts
    tokens: Packed
    """Which row of A is whose, where rows are gathered (gather.py)."""
    walk: Walk
    plan: object = None
    tables: object = None
    job: Job | None = None

    def storage(self, plan) -> dict:
        """Shared memory that the search for tiles needs, by name."""
        of_experts = {"first": plan.most_experts + 1, "begin": plan.most_experts, "end": plan.most_experts}
        sizes = {**of_experts, "warps": plan.threads // 32}
        return {name: cute.struct.MemRange[Int32, size] for name, size in sizes.items()}

    def started(self, plan, storage, k: Int32, target) -> "ExpertTiles":
        """The source on a CTA whose barriers are made: other CTAs' are, too.

        All threads make the tables, of what the kernel before may have written.
        """
        del target
        parts = (storage.first, storage.begin, storage.end, storage.warps)
        sizes = (plan.most_experts + 1, plan.most_experts, plan.most_experts, plan.threads // 32)
        tables = Tables(*(part.get_tensor(cute.make_layout(size)) for part, size in zip(parts, sizes, strict=True)))
        cute.arch.griddepcontrol_wait()
        fill(plan, tables, self.experts, self.walk)
        if plan.cluster_size > 1:
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
        cute.arch.griddepcontrol_launch_dependents()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        k_steps = cute.ceil_div(k, plan.tile_k)
        job = Job(block // plan.cluster_size, blocks // plan.cluster_size, Int32(0), k_steps, Int32(0))
        return replace(self, plan=plan, tables=tables, job=job)

    def first(self, skipped: Int32):
        """The first tile of this CTA behind so many."""
        return self.job.first + skipped * self.job.step

    def after(self, tile: Int32, count: int):
        """The `count`-th tile of this CTA behind one."""
        return tile + count * self.job.step

    def has(self, tile: Int32):
        """Whether there is such a tile."""
        return tile < self.tables.first[self.experts.count]

    def expert_of(self, tile: Int32, expert: Int32):
        """The expert of a tile: `expert` or one after it."""
        return expert_of(self.tables, self.experts, tile, expert)

    def weights_of(self, expert: Int32):
        """Which weights are an expert's."""
        return self.experts.weights_of(expert)

    def at(self, tile: Int32, expert: Int32):
        """(first row, tile of columns, rows of the expert: begin and end) of this CTA's part of a tile."""
        return tile_at(self.plan, self.tables, self.walk, tile, expert)

    def work(self, tile: Int32, expert: Int32, part: Int32, m: Int32):
        """The part of a tile that a consumer group has."""
        del m
        plan = self.plan
        m0, at_n, begin, end = self.at(tile, expert)
        n0 = at_n * plan.tile_n
        x0, y0 = (n0, m0) if plan.swap_ab else (m0, n0)
        return ExpertWorkTile(x0 + part * plan.group_rows, y0, n0, begin, end)

    def fetch(self, vectors, expert: Int32, work: ExpertWorkTile, thread: Int32) -> tuple:
        """Starts loads of what the epilogue of a tile reads."""
        of_expert = vectors.of_expert(self.weights_of(expert))
        return self.tokens.fetch(self.plan, of_expert, thread, (work.x0, work.y0))


@dataclass
class Vectors(Packed):
    """What the epilogue reads of the first expert, and the stride to the next one's."""

    call: epilogue.Vectors
    b_stride_expert: Int64

    @property
    def m(self):
        """Rows of A."""
        return self.call.m

    @property
    def n(self):
        """Columns of D."""
        return self.call.n

    @property
    def k(self):
        """Columns of A."""
        return self.call.k

    @cute.jit
    def of_expert(self, weights: Int32):
        """What the epilogue reads for one expert: its columns have scales of their own."""
        return replace(self.call, b_scales=self.call.b_scales + weights * self.b_stride_expert)
