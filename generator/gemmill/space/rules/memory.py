"""What must fit in shared memory."""

from gemmill.space.config import KernelConfig
from gemmill.vocab import OK, ScaleLayout, Status, TileScheduler, rejected

FEWEST_STAGES = 2
BARRIERS = 1024
"""Pipeline barriers and tile descriptors, rounded up."""


def stage_bytes(config: KernelConfig) -> int:
    """Bytes of one main-loop stage: a tile of A, one of B, and the scales that travel with them."""
    p, (m, n, k) = config.problem, config.schedule.tile_shape_mnk
    scales = (m + n) * 32 * -(-k // p.group_size) if p.group_size else 0
    return ((m * p.a_dtype.bits + n * p.b_dtype.bits) * k + scales) // 8


def epilogue_bytes(config: KernelConfig) -> int:
    """Bytes the epilogue takes beside the main loop: up to four 64 x 32 store buffers and row vectors."""
    m, n, _ = config.schedule.tile_shape_mnk
    if config.schedule.tile_scheduler is TileScheduler.SPLIT_K:
        return 0  # partial sums reuse the stages
    if config.problem.scale_layout is ScaleLayout.STRIDED:
        return m * 64 * config.problem.out_dtype.bits // 8  # a strip of 64 columns at a time
    buffers = min(4, max(1, m * n // (64 * 32)))
    return buffers * 64 * 32 * config.problem.out_dtype.bits // 8 + 3 * 4 * n


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
