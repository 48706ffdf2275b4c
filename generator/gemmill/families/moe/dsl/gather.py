"""Rows of A by their numbers, which TMA cannot gather on Hopper: threads copy them to where TMA would have put them.

A copy is 16 bytes of a row. It is done when its thread says so, a few stages after it was begun: then the thread makes what it
wrote visible to the tensor core, and arrives at the stage's barrier.
"""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from gemmill.families.moe.dsl import producer
from gemmill.families.moe.dsl.experts import Experts, Walk, expert_of, tile_at
from gemmill.gemm.barriers import wait
from gemmill.gemm.packed import Packed
from gemmill.gemm.walk import Job, advance

CHUNK = 16
"""Bytes of a copy."""
CHUNKS = 8
"""Of the 128 bytes of a row that lie together in shared memory, at places that differ by the row's number."""


@dataclass
class Tokens(Packed):
    """Which row of A is whose."""

    ids: cute.Pointer
    words: Int32
    """32-bit words of one number, of which the lowest counts."""
    rows: Int32
    """Of D."""
    count: Int32
    """Rows of A."""
    a: cute.Pointer
    lda: Int64

    @cute.jit
    def of(self, row: Int32):
        """The row of A for a row of D, below 0 for none."""
        at = Int64(cutlass.min(row, self.rows - 1)) * Int64(self.words)
        token = cute.make_tensor(self.ids + at, cute.make_layout(1))[0]
        if token >= self.count:
            token = Int32(-1)
        return token


@cute.jit
def load_tokens(
    plan: cutlass.Constexpr,
    tokens: Tokens,
    scales: producer.GroupScales,
    shared: tuple,
    barriers: tuple,
    tables: cutlass.Constexpr,
    experts: Experts,
    vectors,
    walk: Walk,
    job: Job,
):
    """Warps copy the rows that belong to each stage, and their scales where these come in groups."""
    shared_a, shared_scales = shared
    full, empty = barriers
    lane = cute.arch.thread_idx()[0] - plan.consumers - 32
    at_once = plan.copying_threads // CHUNKS
    chunk, first = lane % CHUNKS, lane // CHUNKS
    found = cute.make_rmem_tensor(plan.tile_m // at_once, Int32)
    scale_rows = cute.make_rmem_tensor(producer.copies_of(plan, plan.a_scales), Int32)
    copies = producer.make_copies(plan)
    stage, phase = Int32(0), Int32(1)
    begun, landed, landing = Int32(0), Int32(0), Int32(0)
    expert, tile = Int32(0), job.first
    while tile < tables.first[experts.count]:
        expert = expert_of(tables, experts, tile, expert)
        m0, at_n, _, _ = tile_at(plan, tables, walk, tile, expert)
        for i in cutlass.range_constexpr(cute.size(found)):
            found[i] = tokens.of(m0 + first + at_once * i)
        if cutlass.const_expr(plan.grouped):
            for i in cutlass.range_constexpr(cute.size(scale_rows)):
                row = m0 + lane + plan.copying_threads * i
                scale_rows[i] = cutlass.max(tokens.of(row), 0)
            producer.aim(plan, scales, copies, scale_rows, at_n, experts.weights_of(expert), vectors.n, lane)
        group = Int32(0)
        for k_step in cutlass.range(job.k_steps, unroll=1):
            wait(empty + stage, phase)
            copy_rows(plan, tokens, found, shared_a + stage * plan.a_bytes, k_step, (chunk, first), vectors.k)
            if cutlass.const_expr(plan.grouped):
                group = producer.copy_stage(
                    plan, scales, copies, group, shared_scales + stage * plan.scales, vectors.k, lane
                )
            cute.arch.cp_async_commit_group()
            begun = begun + 1
            if begun - landed > plan.copies_behind:
                cute.arch.cp_async_wait_group(plan.copies_behind)
                landing = hand_over(plan, full, landing)
                landed = landed + 1
            stage, phase = advance(plan, (stage, phase))
        tile = tile + job.step
    cute.arch.cp_async_wait_group(0)
    while landed < begun:
        landing = hand_over(plan, full, landing)
        landed = landed + 1


@cute.jit
def copy_rows(
    plan: cutlass.Constexpr,
    tokens: Tokens,
    found: cute.Tensor,
    target: Int32,
    k_step: Int32,
    place: tuple,
    k: Int32,
):
    """Starts a thread's copies of one stage to shared memory; zeros, of rows that A has not and beyond K."""
    chunk, first = place
    at_once = plan.copying_threads // CHUNKS
    span = CHUNK * CHUNKS
    end = Int64(k) * plan.element_bytes
    for part in cutlass.range_constexpr(plan.tile_k * plan.element_bytes // span):
        column = Int64(k_step) * (plan.tile_k * plan.element_bytes) + span * part + CHUNK * chunk
        source = tokens.a.toint() + column
        for i in cutlass.range_constexpr(cute.size(found)):
            size = Int32(0)
            if found[i] >= 0 and column < end:
                size = Int32(CHUNK)
            row = first + at_once * i
            offset = span * (plan.tile_m * part + row) + CHUNK * (chunk ^ row % CHUNKS)
            cute.arch.inline_ptx(
                "cp.async.cg.shared.global [{$r0}], [{$r1}], 16, {$r2};",
                read_only_args=[
                    target + offset,
                    source + Int64(cutlass.max(found[i], 0)) * (tokens.lda * plan.element_bytes),
                    size,
                ],
            )


@cute.jit
def hand_over(plan: cutlass.Constexpr, full: cute.Pointer, stage: Int32):
    """Says that a thread's copies of a stage have come. Returns the stage after it."""
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.mbarrier_arrive(full + stage)
    stage = stage + 1
    if stage == plan.stages:
        stage = Int32(0)
    return stage
