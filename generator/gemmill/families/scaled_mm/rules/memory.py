"""Rules on shared memory: the parts that must fit."""

from collections.abc import Iterator

from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.gemm.facts import Facts
from gemmill.vocab import Backend, MainLoop, TileScheduler

FEWEST_STAGES = 2
BARRIERS = 1024
"""Bytes of pipeline barriers and tile descriptors, rounded up."""
SWIZZLE = 1024
"""Bytes of a swizzle pattern, at whole ones of which shared tiles begin."""


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
    """Bytes of the epilogue next to the main loop: up to four 64 x 32 store buffers and row vectors of CUTLASS's."""
    m, n, _ = config.design.tile_shape_mnk
    if config.design.tile_scheduler is TileScheduler.SPLIT_K:
        return 0  # partial sums reuse the stages
    buffers = min(4, max(1, m * n // (64 * 32)))
    return buffers * 64 * 32 * config.operands.out_dtype.bits // 8 + 3 * 4 * n


def few_rows_bytes(config: KernelConfig) -> int:
    """Bytes of shared memory of a kernel of kernels/scaled_mm/few_rows_mm.cuh: stages with their barriers and scales in groups, and
    a tile's sums."""
    x, s = config.operands, config.design
    columns, rows, k = s.tile_shape_mnk
    stages = s.stages or 0
    ring = _whole_swizzles(stages * ((columns + rows) * k * x.a_dtype.bits // 8 + 16))
    groups = k // x.group_size if x.group_size else 1
    scales = stages * groups * 4 * (rows + 4 if x.group_size else 4)
    return _whole_swizzles(ring + 4 * rows * (columns + 4) + scales) + SWIZZLE  # room to align the base


def _whole_swizzles(size: int) -> int:
    return -(-size // SWIZZLE) * SWIZZLE


def stages_fit(config: KernelConfig) -> Iterator[str]:
    """Fewer than two stages leave the tensor core waiting for every load."""
    s = config.design
    if not s.kernel_schedule.uses_tma:
        return
    if s.stages is not None and s.stages < FEWEST_STAGES:
        yield f"{s.stages} stages: the pipeline needs {FEWEST_STAGES}"
    if s.main_loop is MainLoop.FEW_ROWS:
        room, size = config.arch.shared_memory_bytes, few_rows_bytes(config)
        if size > room:
            yield f"{s.stages} stages, scales and sums of the kernel of few rows have {size} bytes of {room}"
        return
    stage, room = stage_bytes(config), stage_room(config)
    fitting = room // stage
    wanted = s.stages or FEWEST_STAGES
    if fitting < wanted:
        yield f"{wanted} stages of {stage} bytes do not fit in {room}: {fitting} do"


def partial_sums_fit(config: KernelConfig) -> Iterator[str]:
    """Partial sums of a split lie where the stages were: rows of the tile, each 16 bytes apart from the next."""
    s, bits = config.design, config.operands.a_dtype.bits
    if s.tile_scheduler is not TileScheduler.SPLIT_K or s.stages is None or s.main_loop is MainLoop.FEW_ROWS:
        return
    x, y, k = s.tile_shape_mnk
    if 4 * y * (x + 4) > s.stages * (x + y) * k * bits // 8:
        yield f"tile {x}x{y}x{k}: partial sums reuse the stages, and {s.stages} of them are too small for a tile"
