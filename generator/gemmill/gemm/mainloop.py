"""The main loop of a consumer group: WGMMA over K, with sums promoted to registers where precision or scales ask for it."""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import warpgroup

from gemmill.gemm.pipeline import Pipeline, PipelineState
from gemmill.gemm.sums import add, apply, read_factors
from gemmill.gemm.walk import steps_before


@cute.jit
def multiply(
    mmas: tuple,
    targets: list,
    operands: tuple,
    slabs: cutlass.Constexpr,
    steps: cutlass.Constexpr,
    stage: Int32,
    fresh: cutlass.Constexpr,
):
    """Issues the WGMMAs of some slabs and MMA steps of a stage, as one group; `fresh` sums start from zero."""
    replacing, adding = mmas
    x, y = operands
    warpgroup.fence()
    for step in cutlass.range_constexpr(*steps):
        for i in cutlass.range_constexpr(len(slabs)):
            mma = replacing if cutlass.const_expr(fresh and step == steps[0]) else adding
            a, b = x[slabs[i]][(None, None, step, stage)], y[(None, None, step, stage)]
            cute.gemm(mma, targets[i], a, b, targets[i])
    warpgroup.commit_group()


@dataclass
class Mainloop:
    """What a consumer group's main loop works on: registers and tensors of the thread, made once a kernel."""

    mmas: tuple
    """WGMMA that replaces its sums, and WGMMA that adds to them."""
    operands: tuple
    """X in shared memory, slab by slab, and Y."""
    pipeline: Pipeline
    scales: cute.Tensor
    """Scales in shared memory: (scale, promotion, stage)."""
    sums: list
    """Sums of each slab."""
    partials: list
    """Sums that are not promoted yet, each of one slab and one promotion: one of the plan's units. Of restarted sums, those
    of a slice, slab by slab."""
    factors: list
    """Scales of each partial sum."""
    before: list
    """Where slices of promoted sums are restarted: those of the slices before, slab by slab."""


@cute.jit
def accumulate(
    plan: cutlass.Constexpr,
    loop: cutlass.Constexpr,
    done: Int32,
    count: Int32,
    place: tuple,
    turn,
    meanwhile: cutlass.Constexpr,
):
    """Multiplies a tile's `count` K steps into the sums; `done` of the CTA's came before.

    Where groups take turns, `turn` is the barrier of the one that multiplies next, else None. `meanwhile` is called, where
    the plan says so (`meets_end`), while the last multiplications run, with the number of slabs whose sums are final.
    """
    if cutlass.const_expr(plan.promoted or plan.split_k):
        for slab in cutlass.range_constexpr(plan.slabs):
            loop.sums[slab].fill(0)
    if cutlass.const_expr(plan.split_k):
        if count > 0:  # a slice may have no steps
            multiply_steps(plan, loop, done, count, place, turn, meanwhile)
    else:
        multiply_steps(plan, loop, done, count, place, turn, meanwhile)


@cute.jit
def accumulate_slices(
    plan: cutlass.Constexpr, loop: cutlass.Constexpr, done: Int32, count: Int32, slices: Int32, place: tuple
):
    """Multiplies a tile's `count` K steps slice by slice. Each slice is summed from zero, and added to those before it.

    Slices are those that CTAs of the divided schedulers take, and an empty one adds nothing, so that the bits are theirs.
    """
    totals, of_slice = (loop.before, loop.sums) if plan.sums_slices else (loop.sums, loop.partials)
    for slab in cutlass.range_constexpr(plan.slabs):
        totals[slab].fill(0)
    first = Int32(0)
    for s in cutlass.range(slices, unroll=1):
        last = steps_before(plan, count, s + 1, slices)
        if last > first:
            if cutlass.const_expr(plan.sums_slices):
                for slab in cutlass.range_constexpr(plan.slabs):
                    of_slice[slab].fill(0)
            multiply_steps(plan, loop, done + first, last - first, place, None, None)
            for slab in cutlass.range_constexpr(plan.slabs):
                add(totals[slab], of_slice[slab])
        first = last
    if cutlass.const_expr(plan.sums_slices):
        for slab in cutlass.range_constexpr(plan.slabs):
            for i in cutlass.range_constexpr(cute.size(totals[slab])):
                loop.sums[slab][i] = totals[slab][i]


@cute.jit
def multiply_steps(
    plan: cutlass.Constexpr,
    loop: cutlass.Constexpr,
    done: Int32,
    count: Int32,
    place: tuple,
    turn,
    meanwhile: cutlass.Constexpr,
):
    """`accumulate` of one K step or more, by the loop that the plan asks for."""
    state = loop.pipeline.consumer_state(done)
    if cutlass.const_expr(plan.overlapped):
        accumulate_behind(plan, loop, state, count, place, meanwhile)
    elif cutlass.const_expr(plan.alternates):
        accumulate_by_turns(plan, loop, state, count, place, meanwhile)
    elif cutlass.const_expr(plan.factors_ahead):
        accumulate_in_turn(plan, loop, state, count, place, meanwhile)
    elif cutlass.const_expr(plan.promoted):
        accumulate_promoted(plan, loop, state, count, place)
    else:
        accumulate_fast(plan, loop, state, count, turn, meanwhile)
    if cutlass.const_expr(plan.promoted):
        hand_over(turn)


@cute.jit
def hand_over(turn):
    """Lets the next group multiply, if there is one."""
    if cutlass.const_expr(turn is not None):
        if cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive(turn)


@cute.jit
def accumulate_fast(
    plan: cutlass.Constexpr,
    loop: cutlass.Constexpr,
    state: PipelineState,
    count: Int32,
    turn,
    meanwhile: cutlass.Constexpr,
):
    """Sums stay in the tensor core's accumulator. One K step's multiplications are queued behind another's, and the
    next group's behind these. That gains 1 to 2 % of large problems (H200, 2026-11-21).

    The first multiplications replace the sums of the tile before, but in split_k, where a slice may have none. Restarted
    sums are a slice's.
    """
    pipeline = loop.pipeline
    sums = loop.partials if plan.restarts else loop.sums
    slabs, steps = tuple(range(plan.slabs)), (0, plan.mma_steps)
    pipeline.consumer_wait(state)
    multiply(loop.mmas, sums, loop.operands, slabs, steps, state.stage, not plan.split_k)
    before = state
    state = pipeline.advance(state)
    for _ in cutlass.range(count - 1, unroll=1):
        pipeline.consumer_wait(state)
        multiply(loop.mmas, sums, loop.operands, slabs, steps, state.stage, False)
        warpgroup.wait_group(1)
        pipeline.consumer_release(before)
        before = state
        state = pipeline.advance(state)
    hand_over(turn)
    if cutlass.const_expr(plan.meets_end):
        meanwhile(0)
    warpgroup.wait_group(0)
    pipeline.consumer_release(before)


@cute.jit
def accumulate_promoted(
    plan: cutlass.Constexpr, loop: cutlass.Constexpr, state: PipelineState, count: Int32, place: tuple
):
    """Sums of a K step are promoted all together, where they are small, or one unit after the other."""
    pipeline = loop.pipeline
    for _ in cutlass.range(count, unroll=1):
        pipeline.consumer_wait(state)
        for first in cutlass.range_constexpr(0, plan.units, plan.partials):
            if cutlass.const_expr(not plan.promotes_each_mma):
                for i in cutlass.range_constexpr(plan.partials):
                    read_unit_factors(plan, loop, first + i, i, state.stage, place)
            for i in cutlass.range_constexpr(plan.partials):
                multiply_unit(plan, loop, first + i, i, state.stage)
            if cutlass.const_expr(plan.promotes_each_mma):  # one WGMMA is soon done: it is not kept from starting
                for i in cutlass.range_constexpr(plan.partials):
                    read_unit_factors(plan, loop, first + i, i, state.stage, place)
            for i in cutlass.range_constexpr(plan.partials):
                warpgroup.wait_group(plan.partials - 1 - i)
                if cutlass.const_expr(first + i + 1 == plan.units):
                    pipeline.consumer_release(state)
                promote(plan, loop, first + i, i, i, place)
        state = pipeline.advance(state)


@cute.jit
def accumulate_in_turn(
    plan: cutlass.Constexpr,
    loop: cutlass.Constexpr,
    state: PipelineState,
    count: Int32,
    place: tuple,
    meanwhile: cutlass.Constexpr,
):
    """One group promotes while the other multiplies, so what lies between a group's multiplications is kept short. The
    scales of the next unit are read while this one's multiplications run."""
    loop.pipeline.consumer_wait(state)
    read_unit_factors(plan, loop, 0, 0, state.stage, place)
    for _ in cutlass.range(count - 1, unroll=1):
        state = step_in_turn(plan, loop, state, place, False, None)
    step_in_turn(plan, loop, state, place, True, meanwhile)


@cute.jit
def step_in_turn(
    plan: cutlass.Constexpr,
    loop: cutlass.Constexpr,
    state: PipelineState,
    place: tuple,
    is_last: cutlass.Constexpr,
    meanwhile: cutlass.Constexpr,
):
    """One K step, unit by unit. Returns the state of the next one, which has come when this returns."""
    pipeline = loop.pipeline
    following = pipeline.advance(state)
    for unit in cutlass.range_constexpr(plan.units):
        multiply_unit(plan, loop, unit, 0, state.stage)
        if cutlass.const_expr(unit + 1 < plan.units):
            read_unit_factors(plan, loop, unit + 1, 1, state.stage, place)
        elif cutlass.const_expr(not is_last):
            pipeline.consumer_wait(following)
            read_unit_factors(plan, loop, 0, 1, following.stage, place)
        if cutlass.const_expr(is_last and plan.meets_end and unit >= plan.units - plan.slabs):
            meanwhile(unit % plan.slabs)
        warpgroup.wait_group(0)
        if cutlass.const_expr(unit + 1 == plan.units):
            pipeline.consumer_release(state)
        promote(plan, loop, unit, 0, 0, place)
        for i in cutlass.range_constexpr(plan.factors):
            loop.factors[0][i] = loop.factors[1][i]
    return following


@cute.jit
def accumulate_behind(
    plan: cutlass.Constexpr,
    loop: cutlass.Constexpr,
    state: PipelineState,
    count: Int32,
    place: tuple,
    meanwhile: cutlass.Constexpr,
):
    """Promotes one K step's sums while the next one's multiplications run, with two sets of partial sums in turn."""
    loop.pipeline.consumer_wait(state)
    read_unit_factors(plan, loop, 0, 0, state.stage, place)
    multiply_unit(plan, loop, 0, 0, state.stage)
    for _ in cutlass.range((count - 1) // 2, unroll=1):
        state = step_behind(plan, loop, state, 1, place)
        state = step_behind(plan, loop, state, 0, place)
    if count % 2 == 0:
        state = step_behind(plan, loop, state, 1, place)
        finish_behind(plan, loop, state, 1, place, meanwhile)
    else:
        finish_behind(plan, loop, state, 0, place, meanwhile)


@cute.jit
def step_behind(
    plan: cutlass.Constexpr, loop: cutlass.Constexpr, state: PipelineState, turn: cutlass.Constexpr, place: tuple
):
    """Issues the next K step into set `turn`, then promotes the one before it. Returns the next one's state."""
    pipeline = loop.pipeline
    before, state = state, pipeline.advance(state)
    pipeline.consumer_wait(state)
    read_unit_factors(plan, loop, 0, turn, state.stage, place)
    multiply_unit(plan, loop, 0, turn, state.stage)
    warpgroup.wait_group(1)
    pipeline.consumer_release(before)
    promote(plan, loop, 0, 1 - turn, 1 - turn, place)
    return state


@cute.jit
def finish_behind(
    plan: cutlass.Constexpr,
    loop: cutlass.Constexpr,
    state: PipelineState,
    turn: cutlass.Constexpr,
    place: tuple,
    meanwhile: cutlass.Constexpr,
):
    """Promotes the last K step, which is in set `turn`."""
    if cutlass.const_expr(plan.meets_end):
        meanwhile(0)
    warpgroup.wait_group(0)
    loop.pipeline.consumer_release(state)
    promote(plan, loop, 0, turn, turn, place)


@cute.jit
def accumulate_by_turns(
    plan: cutlass.Constexpr,
    loop: cutlass.Constexpr,
    state: PipelineState,
    count: Int32,
    place: tuple,
    meanwhile: cutlass.Constexpr,
):
    """Promotes one unit's sums while the next ones' multiplications run, with sets of partial sums in turn.

    The sets divide a K step's units, so each unit has its set when the kernel is compiled. The last step has two
    copies: where one follows the loop and what precedes it, ptxas makes every instruction wait (C7514).
    """
    loop.pipeline.consumer_wait(state)
    for unit in cutlass.range_constexpr(plan.partials - 1):
        multiply_unit(plan, loop, unit, unit, state.stage)
    if cutlass.const_expr(plan.factor_sets == 2):
        read_unit_factors(plan, loop, 0, 0, state.stage, place)
    for _ in cutlass.range(count - 2, unroll=1):
        state = step_by_turns(plan, loop, state, place, False, None)
    if count > 1:
        state = step_by_turns(plan, loop, state, place, False, None)
        step_by_turns(plan, loop, state, place, True, meanwhile)
    else:
        step_by_turns(plan, loop, state, place, True, meanwhile)


@cute.jit
def step_by_turns(
    plan: cutlass.Constexpr,
    loop: cutlass.Constexpr,
    state: PipelineState,
    place: tuple,
    is_last: cutlass.Constexpr,
    meanwhile: cutlass.Constexpr,
):
    """One K step, of which all units but one that sets hold are multiplied already. Returns the state of the next one, of
    which as many are then.

    With two sets of factors, a unit's are read while the one before it is promoted.
    """
    pipeline = loop.pipeline
    ahead, others = plan.factor_sets == 2, plan.partials - 1
    following = pipeline.advance(state)
    for unit in cutlass.range_constexpr(plan.units):
        turn, issued = unit % 2, unit + others
        ends = unit + 1 == plan.units
        if cutlass.const_expr(issued < plan.units):
            multiply_unit(plan, loop, issued, issued % plan.partials, state.stage)
        elif cutlass.const_expr(not is_last):
            if cutlass.const_expr(issued == plan.units):
                pipeline.consumer_wait(following)
            multiply_unit(plan, loop, issued - plan.units, issued % plan.partials, following.stage)
        if cutlass.const_expr(ahead and not ends):
            read_unit_factors(plan, loop, unit + 1, 1 - turn, state.stage, place)
        elif cutlass.const_expr(ahead and not is_last):
            read_unit_factors(plan, loop, 0, 0, following.stage, place)
        if cutlass.const_expr(not ahead):
            read_unit_factors(plan, loop, unit, 0, state.stage, place)
        if cutlass.const_expr(ends and is_last):
            meanwhile(0)
        warpgroup.wait_group(min(others, plan.units - 1 - unit) if is_last else others)
        if cutlass.const_expr(ends):
            pipeline.consumer_release(state)
        promote(plan, loop, unit, unit % plan.partials, turn if ahead else 0, place)
    return following


@cute.jit
def read_unit_factors(
    plan: cutlass.Constexpr, loop, unit: cutlass.Constexpr, i: cutlass.Constexpr, stage: Int32, place: tuple
):
    """Reads a unit's factors into the i-th set, before its multiplications: ptxas would put these loads between them."""
    if cutlass.const_expr(plan.grouped):
        read_factors(plan, loop.factors[i], loop.scales[None, unit // plan.slabs, stage], unit % plan.slabs, place)


@cute.jit
def multiply_unit(
    plan: cutlass.Constexpr, loop: cutlass.Constexpr, unit: cutlass.Constexpr, i: cutlass.Constexpr, stage: Int32
):
    """Issues the WGMMAs of one slab between two promotions, into the i-th partial sums."""
    run = plan.mma_steps // plan.promotions
    first = unit // plan.slabs * run
    multiply(loop.mmas, [loop.partials[i]], loop.operands, (unit % plan.slabs,), (first, first + run), stage, True)


@cute.jit
def promote(
    plan: cutlass.Constexpr,
    loop: cutlass.Constexpr,
    unit: cutlass.Constexpr,
    i: cutlass.Constexpr,
    j: cutlass.Constexpr,
    place: tuple,
):
    """Adds the i-th partial sums to their slab's, with the j-th factors where there are any."""
    sums = loop.sums[unit % plan.slabs]
    if cutlass.const_expr(plan.grouped):
        apply(plan, sums, loop.partials[i], loop.factors[j], place[2])
    else:
        add(sums, loop.partials[i])
