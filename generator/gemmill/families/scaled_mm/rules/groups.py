"""Rules about scales in groups along K: which kernels read them, and with which tiles."""

from collections.abc import Iterator

from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.vocab import Backend, KernelSchedule, MainLoop, ScaleGranularity, ScaleLayout, TileScheduler

TENSOR_CORE_K = 128
"""Elements along K that one step of the group main loops multiplies."""


def _is_collective(config: KernelConfig) -> bool:
    x, s = config.operands, config.design
    by_tma = x.group_size > 0 and s.kernel_schedule.uses_tma
    return (
        config.backend is Backend.CUTLASS
        and s.main_loop is MainLoop.STANDARD
        and (by_tma or x.scale_layout is ScaleLayout.MN_MAJOR)
    )


def scale_layout(config: KernelConfig) -> Iterator[str]:
    """CUTLASS's blockwise collectives load A's scales by TMA or by their strides; kernels of our own know strides alone."""
    s = config.design
    if not _is_collective(config):
        return
    if not s.kernel_schedule.uses_tma or s.tile_scheduler is not TileScheduler.PERSISTENT or s.swap_ab:
        yield (
            f"scales {config.operands.scale_layout} with {s.kernel_schedule}, {s.tile_scheduler}, swap_ab={s.swap_ab}: only "
            "CUTLASS's persistent blockwise main loops take them so, without swap_ab"
        )


def blockwise_collective(config: KernelConfig) -> Iterator[str]:
    """CUTLASS promotes every four WGMMA instructions, 128 along K, and its tiles hold whole blocks of B."""
    x, (_, n, k) = config.operands, config.design.tile_shape_mnk
    if not _is_collective(config):
        return
    if config.design.kernel_schedule is KernelSchedule.BASIC or not x.a_dtype.is_float:
        yield f"CUTLASS has no blockwise main loop for {x.a_dtype} with {config.design.kernel_schedule}"
    if x.group_size != TENSOR_CORE_K or k != TENSOR_CORE_K:
        yield f"groups of {x.group_size} with tile depth {k}: CUTLASS's blockwise main loops take 128 and 128"
    if x.b_scale is ScaleGranularity.BLOCK and n % x.group_size:
        yield f"tile columns {n} are not whole blocks of {x.group_size}"


def few_rows_in_groups(config: KernelConfig) -> Iterator[str]:
    """The kernel of few rows reads scales by their strides, one of B for each tile and group."""
    x, (columns, _, k) = config.operands, config.design.tile_shape_mnk
    if config.design.main_loop is not MainLoop.FEW_ROWS or not x.group_size:
        return
    if x.scale_layout is not ScaleLayout.STRIDED or x.b_scale is not ScaleGranularity.BLOCK or not x.a_dtype.is_float:
        yield (
            f"scales {x.scale_layout} of {x.a_dtype} and of B in a {x.b_scale}: the kernel of few rows reads strided ones of e4m3 in "
            "blocks"
        )
    if x.group_size != TENSOR_CORE_K or k % TENSOR_CORE_K or columns > TENSOR_CORE_K:
        yield (
            f"groups of {x.group_size} with a tile of {columns} columns of B and depth {k}: the kernel of few rows takes groups of "
            "128, up to 128 columns, and a depth of whole groups"
        )


def fallback_depth(config: KernelConfig) -> Iterator[str]:
    """The fallback applies a group's scales after whole K steps."""
    x, (_, _, k) = config.operands, config.design.tile_shape_mnk
    if x.group_size and not config.design.kernel_schedule.uses_tma and x.group_size % k:
        yield f"tile depth {k} with groups of {x.group_size}: the unaligned kernel takes a depth that divides a group"
