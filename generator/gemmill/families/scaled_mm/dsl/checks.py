"""Static checks of a plan: each says in a sentence why a kernel cannot be made."""

from typing import TYPE_CHECKING

from gemmill.families.scaled_mm.dsl.limits import (
    ACCUMULATOR_REGISTERS,
    CONSUMER_GROUPS,
    OPERANDS,
    OUTPUTS,
    SHARED_BYTES,
    SLAB,
)
from gemmill.vocab import Arch, DType, ScaleGranularity, TileScheduler

if TYPE_CHECKING:
    from gemmill.families.scaled_mm.dsl.plan import Plan


def check(plan: "Plan") -> None:
    """Raises ValueError where a kernel cannot be made of the plan's config."""
    for rule in (problem, tile, groups, split, memory):
        rule(plan)


def problem(plan: "Plan") -> None:
    """Types and schedules that are written."""
    p, s = plan.config.problem, plan.config.schedule
    if plan.config.arch is not Arch.SM90A:
        raise ValueError(f"arch {plan.config.arch} is not offered by the cutedsl backend: it writes WGMMA for sm90a")
    if p.a_dtype not in OPERANDS or p.a_dtype is not p.b_dtype:
        raise ValueError(
            f"operands {p.a_dtype} x {p.b_dtype}: the DSL kernel multiplies two operands of one type of "
            f"{', '.join(OPERANDS)}"
        )
    if p.out_dtype not in OUTPUTS:
        raise ValueError(f"out_dtype {p.out_dtype}: the DSL kernel stores {' or '.join(OUTPUTS)}")
    if s.kernel_schedule not in CONSUMER_GROUPS:
        raise ValueError(f"kernel_schedule {s.kernel_schedule}: the DSL kernel runs {', '.join(CONSUMER_GROUPS)}")
    if s.tile_scheduler is TileScheduler.STREAM_K:
        raise ValueError("tile_scheduler streamk: the DSL kernel divides K by split_k, over the CTAs of a cluster")
    if plan.epilogue.takes_azp and p.a_dtype is not DType.S8:
        raise ValueError(f"epilogue {plan.epilogue} corrects integer sums: it takes s8, not {p.a_dtype}")


def tile(plan: "Plan") -> None:
    """What WGMMA, registers and multicast take."""
    s = plan.config.schedule
    unit = SLAB * (1 if plan.pingpong else plan.consumer_groups)
    if plan.tile_x % unit:
        raise ValueError(f"{plan}: rows are not a multiple of {unit}, which {s.kernel_schedule} multiplies")
    if plan.tile_y % 16 or not 16 <= plan.tile_y <= 256:
        raise ValueError(f"{plan}: columns are not a multiple of 16 up to 256")
    if plan.tile_k * plan.x_dtype.bits % 1024:
        raise ValueError(f"{plan}: the K step is not whole rows of 128 bytes")
    if plan.tile_k % plan.promotion_k and plan.promoted:
        raise ValueError(f"{plan}: the K step is not a multiple of {plan.promotion_k}, after which sums are promoted")
    registers = (plan.slabs + plan.partials) * plan.unit_registers
    if registers > ACCUMULATOR_REGISTERS:
        raise ValueError(f"{plan} needs {registers} accumulator registers a thread of {ACCUMULATOR_REGISTERS}")
    if plan.tile_x % (8 * plan.cluster_y) or plan.tile_y % (8 * plan.cluster_x):
        raise ValueError(
            f"{plan} does not divide into multicast slices of 8 rows in a cluster of {plan.cluster_x}x{plan.cluster_y}"
        )
    if plan.cluster_size > 8:
        raise ValueError(f"cluster {plan.cluster_x}x{plan.cluster_y} has {plan.cluster_size} CTAs of 8")


def groups(plan: "Plan") -> None:
    """Scales that change along K."""
    p = plan.config.problem
    if not plan.grouped:
        return
    if plan.epilogue.takes_azp:
        raise ValueError(f"epilogue {plan.epilogue} with group scales: a zero point is for scales per row")
    if p.a_scale is not ScaleGranularity.GROUP or p.b_scale not in (ScaleGranularity.GROUP, ScaleGranularity.BLOCK):
        raise ValueError(
            f"a_scale={p.a_scale} b_scale={p.b_scale}: grouped kernels take group for A and group or block for B"
        )
    if plan.b_scales > 2 and not plan.b_rows_scaled and not plan.blocks_aligned and not plan.swap_ab:
        raise ValueError(
            f"{plan} can touch {plan.b_scales} blocks of {p.group_size} columns at columns that differ from "
            "tile to tile: the DSL kernel chooses between 2"
        )
    if plan.pingpong:
        raise ValueError(
            "pingpong with group scales: one group promotes while the other multiplies, which takes the "
            "cooperative schedule"
        )


def split(plan: "Plan") -> None:
    """A slice of K for each CTA of a cluster."""
    s = plan.config.schedule
    if plan.split_k and (not plan.swap_ab or plan.cluster_size > 1 or plan.pingpong):
        raise ValueError(
            f"split_k with swap_ab={s.swap_ab} cluster={s.cluster_shape_mnk} {s.kernel_schedule}: it takes swap_ab, "
            "a cluster of 1x1x1 (its clusters are made of the splits), and the cooperative or basic schedule"
        )
    if plan.split_k and 4 * plan.tile_y * plan.partial_pitch > plan.stages * (plan.x_bytes + plan.y_bytes):
        raise ValueError(f"{plan}: partial sums reuse the stages, and {plan.stages} of them are too small for a tile")


def memory(plan: "Plan") -> None:
    """What has to fit into shared memory."""
    if plan.stages < 2:
        raise ValueError(
            f"{plan} leaves room for {plan.stages} stages in {SHARED_BYTES} bytes of shared memory: "
            "the pipeline needs 2; take a smaller tile"
        )
    if plan.shared_bytes > SHARED_BYTES:
        raise ValueError(
            f"{plan} with {plan.stages} stages needs {plan.shared_bytes} bytes of shared memory of "
            f"{SHARED_BYTES}: take fewer stages or a smaller tile"
        )
