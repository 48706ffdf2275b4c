"""What must fit in shared memory."""

from math import gcd

from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.vocab import (
    OK,
    Backend,
    EpilogueKind,
    KernelSchedule,
    ScaleGranularity,
    ScaleLayout,
    Status,
    TileScheduler,
    rejected,
)

FEWEST_STAGES = 2
BARRIERS = 1024
"""Pipeline barriers and tile descriptors, rounded up."""


def stage_bytes(config: KernelConfig) -> int:
    """Bytes of one main-loop stage: a tile of A, one of B, and the scales in groups that travel with them."""
    m, n, k = config.schedule.tile_shape_mnk
    operands = (m * config.problem.a_dtype.bits + n * config.problem.b_dtype.bits) * k // 8
    return operands + (_dsl_scale_bytes(config) if config.backend is Backend.CUTEDSL else _scale_bytes(config))


def _scale_bytes(config: KernelConfig) -> int:
    """For each group along K a float of each row of A and of each column of B: fewer, where B has blocks."""
    m, n, k = config.schedule.tile_shape_mnk
    g = config.problem.group_size
    return -(-k // g) * 4 * (m + n) if g else 0


def _dsl_scale_bytes(config: KernelConfig) -> int:
    """For each group along K a float of each row of A, and of each column or touched block of columns of B, in fours."""
    g = config.problem.group_size
    if not g:
        return 0
    m, n, k = config.schedule.tile_shape_mnk
    if config.schedule.swap_ab:
        m, n = n, m
    of_b = n if config.problem.b_scale is ScaleGranularity.GROUP else -(-(n + g - gcd(n, g)) // g)
    return k // g * 4 * (m + -(-of_b // 4) * 4)


def epilogue_bytes(config: KernelConfig) -> int:
    """Bytes the epilogue takes beside the main loop: up to four 64 x 32 store buffers and row vectors."""
    m, n, _ = config.schedule.tile_shape_mnk
    if config.schedule.tile_scheduler is TileScheduler.SPLIT_K:
        return 0  # partial sums reuse the stages
    if config.backend is Backend.CUTEDSL:
        return _dsl_epilogue_bytes(config)
    if config.problem.scale_layout is ScaleLayout.STRIDED:
        return m * 64 * config.problem.out_dtype.bits // 8  # a strip of 64 columns at a time
    buffers = min(4, max(1, m * n // (64 * 32)))
    return buffers * 64 * 32 * config.problem.out_dtype.bits // 8 + 3 * 4 * n


def _dsl_epilogue_bytes(config: KernelConfig) -> int:
    """For each consumer group a store buffer of 64 rows and up to 64 columns (a second one where that costs no stage), and
    what its rows and columns are scaled with and shifted by."""
    p, s = config.problem, config.schedule
    m, n, _ = s.tile_shape_mnk
    groups = 1 if s.kernel_schedule is KernelSchedule.BASIC else 2
    rows = m // 2 if s.kernel_schedule is KernelSchedule.COOPERATIVE else m
    of_m, of_n = (n, rows) if s.swap_ab else (rows, n)
    scaled = not p.group_size
    words = of_m * (scaled + (p.epilogue is EpilogueKind.SCALED_AZP_PER_TOKEN))
    words += of_n * (scaled + p.epilogue.takes_bias + p.epilogue.takes_azp)
    return groups * (64 * gcd(n, 64) * p.out_dtype.bits // 8 + 4 * words)


def stages_fit(config: KernelConfig) -> Status:
    """Fewer than two stages leave the tensor core waiting for every load."""
    s = config.schedule
    if not s.kernel_schedule.uses_tma:
        return OK
    room = config.arch.shared_memory_bytes - epilogue_bytes(config) - BARRIERS
    fitting = room // stage_bytes(config)
    wanted = s.stages or FEWEST_STAGES
    if fitting < wanted:
        return rejected(f"{wanted} stages of {stage_bytes(config)} bytes do not fit in {room}: {fitting} do")
    return OK


RULES = (stages_fit,)
