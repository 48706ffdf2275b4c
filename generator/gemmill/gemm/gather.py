"""Rows of A by their numbers, which TMA cannot gather on Hopper: threads copy them to where TMA would have put them.

A copy is 16 bytes of a row. Its thread declares it done a few stages after it was begun. Then the thread makes what it
wrote visible to the tensor core, and arrives at the stage's barrier.
"""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from gemmill.gemm import epilogue
from gemmill.gemm import expert_producer as producer
from gemmill.gemm.experts import ExpertTiles
from gemmill.gemm.packed import Packed
from gemmill.gemm.pipeline import Pipeline, PipelineState

CHUNK = 16
"""Bytes of a copy."""
CHUNKS = 8
"""Copies of the 128 bytes of a row that lie together in shared memory, at places that differ by the row's number."""


@dataclass
class Tokens(Packed):
    """Which row of A is whose."""

    ids: cute.Pointer
    words: Int32
    """32-bit words of one number, of which the lowest counts."""
    rows: Int32
    """Rows of D."""
    count: Int32
    """Rows of A."""
    a: cute.Pointer
    lda: Int64

    @cute.jit
    def of(self, row: Int32):
        """The row of A for a row of D; below 0 where there is none."""
        at = Int64(cutlass.min(row, self.rows - 1)) * Int64(self.words)
        token = cute.make_tensor(self.ids + at, cute.make_layout(1))[0]
        if token >= self.count:
            token = Int32(-1)
        return token

    def fetch(self, plan, v: epilogue.Vectors, thread: Int32, origin: tuple) -> tuple:
        """Starts loads of what a tile's epilogue reads. Where rows are gathered, it reads at their numbers in A.

        Of a row that A has not the scale is 0: sums are zeros, and must not become NaN by another row's scale.
        """
        if not plan.indexed:
            return epilogue.fetch(plan, v, thread, origin)
        n0, m0 = origin if plan.swap_ab else origin[::-1]
        rows = [self.of(m0 + thread + 128 * i) for i in range((plan.group_m + 127) // 128)]
        columns = [epilogue.of_column(plan, v, n0 + thread + 128 * i) for i in range((plan.group_n + 127) // 128)]
        return [known_of(epilogue.of_row(plan, v, cutlass.max(row, 0)), row) for row in rows], columns


@dataclass
class Rows:
    """The part of a tile that a thread copies: a piece of each of its rows. Registers of the thread, made once a
    kernel."""

    chunk: Int32
    """Which piece of the 128 bytes of a row."""
    first: Int32
    """The thread's first row of the tile; the others follow `at_once` apart."""
    at_once: int
    sources: cute.Tensor
    """Addresses in A, which move along K."""


def make_rows(plan, lane: Int32) -> Rows:
    """The rows of a thread among those that copy."""
    at_once = plan.copying_threads // CHUNKS
    return Rows(lane % CHUNKS, lane // CHUNKS, at_once, cute.make_rmem_tensor(plan.tile_m // at_once, Int64))


@cute.jit
def aim(plan: cutlass.Constexpr, tokens: Tokens, rows: cutlass.Constexpr, m0: Int32):
    """Points a thread's copies at the beginning of a tile's rows. Returns a bit for each row, set where A has it."""
    row_bytes = tokens.lda * plan.element_bytes
    known = Int32(0)
    for i in cutlass.range_constexpr(cute.size(rows.sources)):
        token = tokens.of(m0 + rows.first + rows.at_once * i)
        if token >= 0:
            known = known | 1 << i
        rows.sources[i] = tokens.a.toint() + Int64(cutlass.max(token, 0)) * row_bytes + CHUNK * rows.chunk
    return known


@cute.jit
def load_tokens(
    plan: cutlass.Constexpr,
    scales: producer.GroupScales,
    shared: tuple,
    pipeline: Pipeline,
    tiles: ExpertTiles,
    vectors,
    of_column: cutlass.Constexpr = None,
):
    """Warps copy the rows that belong to each stage, and their scales where these come in groups."""
    shared_a, shared_scales = shared
    lane = cute.arch.thread_idx()[0] - plan.consumers - 32
    rows = make_rows(plan, lane)
    scale_rows = cute.make_rmem_tensor(producer.copies_of(plan, plan.a_scales), Int32)
    copies = producer.make_copies(plan)
    state, landing = pipeline.producer_start(), pipeline.producer_start()
    begun, landed = Int32(0), Int32(0)
    tokens = tiles.tokens
    expert, tile = Int32(0), tiles.first(0)
    while tiles.has(tile):
        expert = tiles.expert_of(tile, expert)
        m0, at_n, begin, end = tiles.at(tile, expert)
        known, with_scales = aim(plan, tokens, rows, m0), Int32(0)
        if cutlass.const_expr(plan.grouped):
            for i in cutlass.range_constexpr(cute.size(scale_rows)):
                token = tokens.of(m0 + lane + plan.copying_threads * i)
                if token >= 0:
                    with_scales = with_scales | 1 << i
                scale_rows[i] = cutlass.max(token, 0)
            producer.aim(plan, scales, copies, scale_rows, at_n, tiles.weights_of(expert), vectors.n, lane, of_column)
        group, left = Int32(0), Int64(vectors.k) * plan.element_bytes
        for _ in cutlass.range(tiles.job.k_steps, unroll=1):
            pipeline.producer_acquire(state)
            copy_rows(plan, rows, shared_a + state.stage * plan.a_bytes, (known, begin - m0, end - m0), left)
            left = left - plan.stage_row_bytes
            if cutlass.const_expr(plan.grouped):
                of_stage = shared_scales + state.stage * plan.scales
                group = producer.copy_stage(plan, scales, copies, group, of_stage, vectors.k, lane, with_scales)
            cute.arch.cp_async_commit_group()
            begun = begun + 1
            if begun - landed > plan.copies_behind:
                cute.arch.cp_async_wait_group(plan.copies_behind)
                landing = hand_over(pipeline, landing)
                landed = landed + 1
            state = pipeline.advance(state)
        tile = tiles.after(tile, 1)
    cute.arch.cp_async_wait_group(0)
    while landed < begun:
        landing = hand_over(pipeline, landing)
        landed = landed + 1


@cute.jit
def copy_rows(plan: cutlass.Constexpr, rows: cutlass.Constexpr, target: Int32, kept: tuple, left: Int64):
    """Starts a thread's copies of one stage to shared memory. `left` bytes of a row are in A, and zeros follow.

    Rows that are not known are zeros, too. Rows of the tile before and behind those that are `kept` are not the
    expert's. They stay what they were: their sums are not stored.
    """
    known, first_kept, end_kept = kept
    # Else the compiler keeps a register for each of its bits from stage to stage, and spills.
    known = cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[known])
    span = CHUNK * CHUNKS
    for i in cutlass.range_constexpr(cute.size(rows.sources)):
        if rows.at_once * (i + 1) > first_kept and rows.at_once * i < end_kept:
            swizzled = (
                rows.chunk ^ rows.first ^ rows.at_once * i % CHUNKS
            )  # by the row, whose lowest bits are `first`'s
            place = target + span * rows.first + CHUNK * swizzled + span * rows.at_once * i
            for part in cutlass.range_constexpr(plan.stage_row_bytes // span):
                size = (known >> i & 1) * CHUNK
                if left <= span * part + CHUNK * rows.chunk:
                    size = Int32(0)
                cute.arch.inline_ptx(
                    "cp.async.cg.shared.global [{$r0}], [{$r1}], 16, {$r2};",
                    read_only_args=[place + span * plan.tile_m * part, rows.sources[i] + span * part, size],
                )
        rows.sources[i] = rows.sources[i] + plan.stage_row_bytes


@cute.jit
def hand_over(pipeline: Pipeline, state: PipelineState):
    """Says that a thread's copies of a stage have come. Returns the place after it."""
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.mbarrier_arrive(pipeline.full + state.stage)
    return pipeline.advance(state)


def known_of(values: tuple, row: Int32) -> tuple:
    """The epilogue's inputs of a row of A; zeros below 0, where there is none."""
    return tuple(type(value)(cutlass.select_(row >= 0, value, type(value)(0))) for value in values)
