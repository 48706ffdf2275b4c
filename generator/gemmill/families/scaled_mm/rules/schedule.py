"""Rules about the tiles, clusters and schedules that the hardware and CUTLASS can run."""

from collections.abc import Iterator

from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.gemm import limits
from gemmill.gemm.facts import Facts
from gemmill.vocab import (
    Accumulation,
    Arch,
    Backend,
    EpilogueKind,
    KernelSchedule,
    MainLoop,
    RasterOrder,
    TileScheduler,
)

WGMMA_ROWS = 64
WGMMA_MOST_COLUMNS = 256
PORTABLE_CLUSTER = 8
MOST_SLICES = 16
"""The most slices of K that no cluster binds."""
ACCUMULATOR_REGISTERS = 208
"""Registers of a consumer thread for sums, next to addresses and the epilogue. It can have 240 (setmaxnreg)."""
AZP_REGISTERS = 24
"""Registers that CUTLASS's epilogue takes besides for zero points of tokens: a tile of 192 accumulators spilled 84
bytes."""

DIVIDED = (TileScheduler.SPLIT_K, TileScheduler.SPLIT_K_PARALLEL, TileScheduler.RESTARTED)
"""Schedulers that sum slices of K apart, in an order that does not depend on rows."""

CONSUMER_GROUPS = {KernelSchedule.COOPERATIVE: 2, KernelSchedule.PINGPONG: 1, KernelSchedule.BASIC: 1}


def tile_rows(config: KernelConfig) -> Iterator[str]:
    """WGMMA multiplies 64 rows a warp group; cooperative halves the tile between two groups."""
    s = config.design
    if config.arch is not Arch.SM90A or not s.kernel_schedule.uses_tma:
        return
    unit = WGMMA_ROWS * CONSUMER_GROUPS[s.kernel_schedule]
    if s.tile_shape_mnk[0] % unit:
        yield (
            f"tile rows {s.tile_shape_mnk[0]} are not a multiple of {unit}, the rows that {s.kernel_schedule} multiplies"
        )


def tile_columns(config: KernelConfig) -> Iterator[str]:
    """WGMMA takes 8 to 256 columns in steps of 8 (16 for s8 above 32); the epilogue stores 16 at a time."""
    n = config.design.tile_shape_mnk[1]
    if not config.design.kernel_schedule.uses_tma or config.arch is not Arch.SM90A:
        return
    if n > WGMMA_MOST_COLUMNS or n % 16:
        yield f"tile columns {n} are not a multiple of 16 up to {WGMMA_MOST_COLUMNS}"


def tile_depth(config: KernelConfig) -> Iterator[str]:
    """A K step is whole 128-byte swizzle rows, so that shared memory is read without bank conflicts."""
    k = config.design.tile_shape_mnk[2]
    if config.design.kernel_schedule.uses_tma and k * config.operands.a_dtype.bits % (128 * 8):
        yield f"tile depth {k} of {config.operands.a_dtype} is not a multiple of 128 bytes"


def accumulators_fit(config: KernelConfig) -> Iterator[str]:
    """Accumulators live in registers. Promotion and scales in groups double them, and beyond about 200 a thread they
    spill.

    The DSL kernel promotes 64 rows at a time. Its facts have its registers in addition to a whole tile's sums. The rule
    also keeps out CUTLASS's cooperative blockwise tile of 256x128, which gives wrong results (NVIDIA/cutlass#3596).
    """
    s = config.design
    if config.arch is not Arch.SM90A or not s.kernel_schedule.uses_tma:
        return
    m, n, _ = s.tile_shape_mnk
    if config.backend is Backend.CUTEDSL:
        registers, room = Facts(config).accumulator_registers, limits.ACCUMULATOR_REGISTERS
    else:
        doubled = s.accumulation is Accumulation.PROMOTED or config.operands.group_size
        # The kernel of few rows multiplies all groups of a step before it adds the first.
        few_rows = s.main_loop is MainLoop.FEW_ROWS and config.group_size
        partials = s.tile_shape_mnk[2] // config.group_size if few_rows else 1 if doubled else 0
        registers = m * n * (1 + partials) // (128 * CONSUMER_GROUPS[s.kernel_schedule])
        azp = config.epilogue is EpilogueKind.SCALED_AZP_PER_TOKEN
        room = ACCUMULATOR_REGISTERS - (AZP_REGISTERS if azp else 0)
    if registers > room:
        yield f"tile {m}x{n} needs {registers} accumulator registers a thread of {room}"


def cluster(config: KernelConfig) -> Iterator[str]:
    """8 CTAs are the largest cluster every device must run; multicast goes along M and N only."""
    m, n, k = config.design.cluster_shape_mnk
    if k != 1:
        yield f"cluster {m}x{n}x{k} extends along K, where nothing is shared"
    if m * n > PORTABLE_CLUSTER:
        yield f"cluster {m}x{n} has {m * n} CTAs of {PORTABLE_CLUSTER}"
    if not config.design.kernel_schedule.uses_tma and (m, n) != (1, 1):
        yield f"cluster {m}x{n} without TMA: there is no multicast to share"


def cluster_on_sm120(config: KernelConfig) -> Iterator[str]:
    """GeForce Blackwell has no multicast: CUTLASS takes clusters of one CTA only."""
    if config.arch is Arch.SM120F and config.design.cluster_shape_mnk != (1, 1, 1):
        yield "sm120f has no TMA multicast: the cluster is 1x1x1"


def schedule_on_blackwell(config: KernelConfig) -> Iterator[str]:
    """The later tensor cores have neither Hopper's choice of accumulation nor its pairing by hand. Warps multiply with `mma.sync`
    on sm120f as on Hopper."""
    s = config.design
    if config.arch is Arch.SM90A or (config.arch is Arch.SM120F and not s.kernel_schedule.uses_tma):
        return
    if s.accumulation is Accumulation.PROMOTED:
        yield f"{config.arch} accumulates FP8 in FP32: there is nothing to promote"
    if s.kernel_schedule in (KernelSchedule.PINGPONG, KernelSchedule.BASIC):
        yield (
            f"on {config.arch} CUTLASS chooses the schedule from tile and cluster: it is written cooperative, not {s.kernel_schedule}"
        )
    if not s.kernel_schedule.uses_tma or s.tile_scheduler is not TileScheduler.PERSISTENT:
        yield f"{s.kernel_schedule} with {s.tile_scheduler} is a schedule of sm90a"
    if config.operands.a_dtype.is_float is False:
        yield f"s8 is offered on sm90a only, not on {config.arch}"


def scheduler_fits_schedule(config: KernelConfig) -> Iterator[str]:
    """Adding partial sums needs every consumer group on one tile, which pingpong does not have."""
    s = config.design
    whole = (TileScheduler.STREAM_K, TileScheduler.SPLIT_K_PARALLEL)
    if s.tile_scheduler in whole and s.kernel_schedule is not KernelSchedule.COOPERATIVE:
        yield f"{s.tile_scheduler} runs with the cooperative schedule, not {s.kernel_schedule}"
    if s.tile_scheduler is TileScheduler.SPLIT_K_PARALLEL and s.swap_ab:
        yield f"{s.tile_scheduler} stores pairs of columns of D, which are rows of the tile with swap_ab"
    if s.tile_scheduler is TileScheduler.SPLIT_K and s.kernel_schedule not in (
        KernelSchedule.COOPERATIVE,
        KernelSchedule.BASIC,
    ):
        yield f"{s.tile_scheduler} runs with the cooperative or basic schedule, not {s.kernel_schedule}"


def split_k(config: KernelConfig) -> Iterator[str]:
    """The split_k kernel is for a small M: transposed, a stage count of its own, 64 columns of B a group."""
    s = config.design
    if s.tile_scheduler is not TileScheduler.SPLIT_K:
        return
    if not s.swap_ab or s.stages is None or s.cluster_shape_mnk != (1, 1, 1):
        yield "split_k takes swap_ab, a number of stages, and a cluster of 1x1x1 (its clusters are made of the splits)"
    groups = s.tile_shape_mnk[0] // WGMMA_ROWS
    if groups != CONSUMER_GROUPS[s.kernel_schedule]:
        yield (
            f"{s.tile_shape_mnk[0]} columns of B are {groups} consumer groups, {s.kernel_schedule} has {CONSUMER_GROUPS[s.kernel_schedule]}"
        )


def few_rows(config: KernelConfig) -> Iterator[str]:
    """The kernel of few rows is written by hand for Hopper. It walks over tiles in one order, of scales in groups by split_k,
    and has 64 columns of B a consumer group. It promotes sums only where it scales them."""
    launch, s = config.launch, config.design
    if s.main_loop is not MainLoop.FEW_ROWS:
        return
    if config.backend is not Backend.CUTLASS or config.arch is not Arch.SM90A:
        yield f"the kernel of few rows is hand-written for sm90a, in place of cutlass's: {config.backend} on {config.arch} has none"
    scheduler = TileScheduler.SPLIT_K if config.group_size else TileScheduler.PERSISTENT
    if not s.swap_ab or s.stages is None or s.tile_scheduler is not scheduler:
        yield "the kernel of few rows takes swap_ab, a number of stages, and the scheduler persistent, of scales in groups splitk"
    columns = {KernelSchedule.BASIC: WGMMA_ROWS, KernelSchedule.COOPERATIVE: 2 * WGMMA_ROWS}
    if s.cluster_shape_mnk != (1, 1, 1) or s.tile_shape_mnk[0] != columns.get(s.kernel_schedule):
        yield "the kernel of few rows takes a cluster of 1x1x1, and 64 columns of B with basic or 128 with cooperative"
    if launch.raster_order is not RasterOrder.HEURISTIC or launch.swizzle != 1:
        yield "the kernel of few rows walks tiles in one order: raster order and swizzle do not apply"
    if s.accumulation is Accumulation.PROMOTED and not config.group_size:
        yield f"accumulation {s.accumulation} without scales in groups: split_k promotes sums of few rows"


def restarted_sums(config: KernelConfig) -> Iterator[str]:
    """A slice's sums are held apart from those of the slices before. Groups that take turns would wait for each other at every
    slice."""
    s = config.design
    if s.tile_scheduler is not TileScheduler.RESTARTED:
        return
    if s.kernel_schedule not in (KernelSchedule.COOPERATIVE, KernelSchedule.BASIC):
        yield f"{s.tile_scheduler} runs with the cooperative or basic schedule, not {s.kernel_schedule}"
    if s.accumulation is Accumulation.EXACT and not config.operands.group_size:
        yield f"{s.tile_scheduler} is for sums that depend on their order, these are {s.accumulation}"


def slice_step(config: KernelConfig) -> Iterator[str]:
    """The DSL's kernels deal out whole K steps, several at a time if told so. A variant that deals as without is the same."""
    s = config.design
    if s.slice_step is None:
        return
    if config.backend is not Backend.CUTEDSL or s.tile_scheduler not in DIVIDED:
        yield f"slices of whole {s.slice_step} are dealt out by the cutedsl backend's schedulers {', '.join(DIVIDED)}"
    if s.slice_step <= s.tile_shape_mnk[2] or s.slice_step % s.tile_shape_mnk[2]:
        yield f"slices of whole {s.slice_step} are no multiple, from 2 on, of the tile's depth {s.tile_shape_mnk[2]}"


def launch_settings(config: KernelConfig) -> Iterator[str]:
    """The rule rejects launch settings that the scheduler would ignore, so that no two variants are the same."""
    launch, s = config.launch, config.design
    if launch.swizzle not in (1, 2, 4, 8):
        yield f"swizzle {launch.swizzle} is not 1, 2, 4 or 8"
    divides_k = s.tile_scheduler in (TileScheduler.SPLIT_K, TileScheduler.SPLIT_K_PARALLEL)
    most = {
        TileScheduler.SPLIT_K: PORTABLE_CLUSTER,
        TileScheduler.SPLIT_K_PARALLEL: MOST_SLICES,
        TileScheduler.RESTARTED: MOST_SLICES,
    }.get(s.tile_scheduler, 1)
    if not 1 <= launch.splits <= most:
        yield (
            f"splits={launch.splits} with the {s.tile_scheduler} scheduler: split_k takes 1 to {PORTABLE_CLUSTER}, "
            f"split_k_parallel and restarted 1 to {MOST_SLICES}, the others 1"
        )
    if divides_k and (launch.raster_order is not RasterOrder.HEURISTIC or launch.swizzle != 1):
        yield "split_k walks tiles in one order: raster order and swizzle do not apply"
    if not s.kernel_schedule.uses_tma and (launch.raster_order is not RasterOrder.HEURISTIC or launch.swizzle != 1):
        yield f"{s.kernel_schedule} walks tiles in one order: raster order and swizzle do not apply"
