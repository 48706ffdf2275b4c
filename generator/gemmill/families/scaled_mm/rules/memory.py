"""Rules on shared memory: the parts that must fit."""

from collections.abc import Iterator

from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.gemm.facts import Facts
from gemmill.vocab import Backend, TileScheduler

FEWEST_STAGES = 2
BARRIERS = 1024
"""Bytes of pipeline barriers and tile descriptors, rounded up."""


def stage_bytes(config: KernelConfig) -> int:
    """Bytes of one main-loop stage: a tile of A, one of B, and the scales in groups that travel with them."""
    if config.backend is Backend.CUTEDSL:
        return Facts(config).stage_bytes
    m, n, k = config.design.tile_shape_mnk
    operands = (m * config.operands.a_dtype.bits + n * config.operands.b_dtype.bits) * k // 8
    g = config.operands.group_size
    # For each group along K a float of each row of A and of each column of B: fewer, where B has blocks.
    return operands + (-(-k // g) * 4 * (m + n) if g else 0)


def stage_room(config: KernelConfig) -> int:
    """Bytes of shared memory for stages."""
    if config.backend is Backend.CUTEDSL:
        return Facts(config).stage_room
    return config.arch.shared_memory_bytes - epilogue_bytes(config) - BARRIERS


def epilogue_bytes(config: KernelConfig) -> int:
    """Bytes of the epilogue next to the main loop: up to four 64 x 32 store buffers and row vectors of CUTLASS's, sums of a tile
    of few rows."""
    m, n, _ = config.design.tile_shape_mnk
    if config.walks_few_rows:
        return 4 * n * (m + 4)
    if config.design.tile_scheduler is TileScheduler.SPLIT_K:
        return 0  # partial sums reuse the stages
    buffers = min(4, max(1, m * n // (64 * 32)))
    return buffers * 64 * 32 * config.operands.out_dtype.bits // 8 + 3 * 4 * n


def stages_fit(config: KernelConfig) -> Iterator[str]:
    """Fewer than two stages leave the tensor core waiting for every load."""
    s = config.design
    if not s.kernel_schedule.uses_tma:
        return
    if s.stages is not None and s.stages < FEWEST_STAGES:
        yield f"{s.stages} stages: the pipeline needs {FEWEST_STAGES}"
    stage, room = stage_bytes(config), stage_room(config)
    fitting = room // stage
    wanted = s.stages or FEWEST_STAGES
    if fitting < wanted:
        yield f"{wanted} stages of {stage} bytes do not fit in {room}: {fitting} do"


def partial_sums_fit(config: KernelConfig) -> Iterator[str]:
    """Partial sums of a split lie where the stages were: rows of the tile, each 16 bytes apart from the next."""
    s, bits = config.design, config.operands.a_dtype.bits
    if s.tile_scheduler is not TileScheduler.SPLIT_K or s.stages is None or config.walks_few_rows:
        return
    x, y, k = s.tile_shape_mnk
    if 4 * y * (x + 4) > s.stages * (x + y) * k * bits // 8:
        yield f"tile {x}x{y}x{k}: partial sums reuse the stages, and {s.stages} of them are too small for a tile"
