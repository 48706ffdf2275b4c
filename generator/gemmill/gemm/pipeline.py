"""The ring of stages in shared memory between producers and consumers, and the turns of consumer groups."""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from gemmill.gemm.packed import Packed
from gemmill.gemm.plan import Plan


@cute.jit
def wait(barrier: cute.Pointer, phase: Int32):
    """Waits until a phase of a barrier has ended.

    In place of `cute.arch.mbarrier_wait`, which puts the warp to sleep for as long as 10 ms with NANOSLEEP.
    """
    cute.arch.inline_ptx(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [{$r0}], {$r1};\n"
        "@!done bra again;\n}",
        read_only_args=[barrier, Int32(phase)],
    )


@dataclass
class PipelineState(Packed):
    """A place in the ring: a stage, and the parity of the phase of its barriers."""

    stage: Int32
    phase: Int32


@dataclass
class Pipeline(Packed):
    """The barriers of the plan's stages. Producers fill a stage once consumers have released it."""

    plan: Plan
    full: cute.Pointer
    """Of each stage, the barrier at which its data arrives."""
    empty: cute.Pointer
    """Of each stage, the barrier at which warps arrive that have read it."""

    def producer_start(self) -> PipelineState:
        """The first stage, which nobody has to release."""
        return PipelineState(Int32(0), Int32(1))

    def consumer_state(self, done: Int32) -> PipelineState:
        """The stage of the step before which `done` came."""
        return PipelineState(done % self.plan.stages, done // self.plan.stages & 1)

    @cute.jit
    def init(self):
        """Makes the barriers. One thread does."""
        plan = self.plan
        readers = 4 * (1 if plan.pingpong else plan.consumer_groups) * plan.sharers
        for stage in cutlass.range_constexpr(plan.stages):
            cute.arch.mbarrier_init(self.full + stage, 1 + plan.copying_threads)
            cute.arch.mbarrier_init(self.empty + stage, readers)

    def producer_acquire(self, state: PipelineState):
        """Waits until all consumers have released a stage."""
        wait(self.empty + state.stage, state.phase)

    @cute.jit
    def producer_expect(self, stage: Int32, size: Int32):
        """Tells a stage's barrier how many bytes TMA will bring."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(self.full + stage, size)

    def producer_commit(self, state: PipelineState):
        """Has a stage's barrier count this thread once its copies of scales have come."""
        cute.arch.cp_async_mbarrier_arrive_noinc(self.full + state.stage)

    def consumer_wait(self, state: PipelineState):
        """Waits until a stage is full."""
        wait(self.full + state.stage, state.phase)

    @cute.jit
    def consumer_release(self, state: PipelineState):
        """One warp says that it has read a stage, to every CTA whose loads also land here."""
        plan, stage = self.plan, state.stage
        lane = cute.arch.lane_idx()
        if cutlass.const_expr(plan.cluster_size == 1):
            if lane == 0:
                cute.arch.mbarrier_arrive(self.empty + stage)
        else:
            rank = cute.arch.block_idx_in_cluster()
            if lane < plan.sharers:
                # First the CTAs of the same X, then the others of the same Y.
                peer = rank % plan.cluster_x + lane * plan.cluster_x
                if lane >= plan.cluster_y:
                    other = lane - plan.cluster_y
                    other = other + Int32(other >= rank % plan.cluster_x)
                    peer = rank - rank % plan.cluster_x + other
                cute.arch.mbarrier_arrive(self.empty + stage, peer)

    @cute.jit
    def advance(self, state: PipelineState):
        """The place after this one."""
        stage, phase = state.stage + 1, state.phase
        if stage == self.plan.stages:
            stage = Int32(0)
            phase = phase ^ 1
        return PipelineState(stage, phase)


@dataclass
class GroupOrder(Packed):
    """Whose turn it is to multiply, where two consumer groups alternate."""

    turns: cute.Pointer
    """Of each group, the barrier at which the other one arrives."""

    @cute.jit
    def init(self):
        """Makes the barriers. One thread does."""
        for i in cutlass.range_constexpr(2):
            cute.arch.mbarrier_init(self.turns + i, 4)

    def wait(self, group: Int32, phase: Int32):
        """Waits for a group's turn. The first group's first turn has come already."""
        wait(self.turns + group, phase ^ group ^ 1)

    def after(self, group: Int32) -> cute.Pointer:
        """The barrier of the group that multiplies after this one."""
        return self.turns + (group ^ 1)
