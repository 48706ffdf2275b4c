"""The shared memory of a sparse GEMM's kernel."""

from gemmill.families.sparse_mm.config import SparseConfig

BARRIERS = 1024
"""Bytes of pipeline barriers, rounded up."""


def stage_bytes(config: SparseConfig) -> int:
    """Bytes of one main-loop stage: kept weights, their metadata of a bit for two elements, and a tile of a."""
    m, n, k = config.design.tile_shape_mnk
    return (m // 2 + n) * k * config.operand_dtype.bits // 8 + m * k // 8


def stage_room(config: SparseConfig) -> int:
    """Bytes for stages, without the epilogue's: up to four 64 x 32 store buffers and vectors of scales."""
    m, n, _ = config.design.tile_shape_mnk
    buffers = min(4, max(1, m * n // (64 * 32)))
    return config.arch.shared_memory_bytes - buffers * 64 * 32 * config.out_dtype.bits // 8 - 3 * 4 * m - BARRIERS
