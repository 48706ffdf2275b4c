"""Rules for kernels in CuTe DSL, in addition to those for every backend."""

from collections.abc import Iterator

from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.families.scaled_mm.own import OwnConfig
from gemmill.gemm import fitting
from gemmill.gemm.facts import Facts
from gemmill.vocab import Arch, Backend, KernelSchedule, ScaleGranularity, ScaleLayout, TileScheduler

MULTICAST_ROWS = 8
"""Rows of one swizzle pattern. A CTA loads whole patterns of the tile that its cluster shares."""

MOST_WITH_SCALED_COLUMNS = 128 * 128
"""The most elements of a tile whose columns of B have scales of their own.

256x128 spilled 156 bytes, and 436 with groups of 64.
"""


def dsl_arch(config: KernelConfig) -> Iterator[str]:
    """The DSL kernel multiplies with WGMMA, which no later architecture has."""
    if config.backend is Backend.CUTEDSL and config.arch is not Arch.SM90A:
        yield f"the cutedsl backend is written for sm90a, not for {config.arch}"


def dsl_schedule(config: KernelConfig) -> Iterator[str]:
    """The DSL kernel moves operands by TMA, and divides K among CTAs in one way or another."""
    s = config.design
    if config.backend is not Backend.CUTEDSL:
        if s.tile_scheduler in (TileScheduler.SPLIT_K_PARALLEL, TileScheduler.RESTARTED):
            yield f"{s.tile_scheduler} is a scheduler of the cutedsl backend"
        return
    if isinstance(config, OwnConfig) and s.tile_scheduler is TileScheduler.SPLIT_K_PARALLEL:
        yield f"{s.tile_scheduler} is for the standard epilogues: others are given no workspace"
    if not s.kernel_schedule.uses_tma:
        yield f"the cutedsl backend has no {s.kernel_schedule} kernel: cutlass has the fallback"
    if s.tile_scheduler is TileScheduler.STREAM_K:
        yield "the cutedsl backend divides K by split_k, not by streamk"


def dsl_multicast(config: KernelConfig) -> Iterator[str]:
    """The CTAs of a cluster load slices of a shared tile, each of whole swizzle patterns."""
    if config.backend is not Backend.CUTEDSL:
        return
    s = config.design
    for rows, ctas in (
        (s.tile_shape_mnk[0], s.cluster_shape_mnk[1]),
        (s.tile_shape_mnk[1], s.cluster_shape_mnk[0]),
    ):
        if rows % (MULTICAST_ROWS * ctas):
            yield f"{rows} rows of a tile do not divide into slices of {MULTICAST_ROWS} for {ctas} CTAs"


def dsl_groups(config: KernelConfig) -> Iterator[str]:
    """With scales in groups, one consumer group of a tile scales its sums while the other multiplies."""
    x, s = config.operands, config.design
    if config.backend is not Backend.CUTEDSL or not x.group_size:
        return
    if x.scale_layout is not ScaleLayout.STRIDED:
        yield f"the cutedsl backend reads scales by their strides, it has no kernel for {x.scale_layout} alone"
    if s.kernel_schedule is KernelSchedule.PINGPONG:
        yield f"the cutedsl backend has no {s.kernel_schedule} kernel with scales in groups: cooperative is one"
    facts, (m, n, k) = Facts(config), s.tile_shape_mnk
    if facts.b_scales > 2 and not facts.b_rows_scaled and not facts.blocks_aligned and not facts.swap_ab:
        yield (
            f"tile {m}x{n}x{k} can touch {facts.b_scales} blocks of {x.group_size} columns at columns that differ from tile to tile: "
            "the DSL kernel chooses between 2"
        )
    if x.b_scale is ScaleGranularity.GROUP and m * n > MOST_WITH_SCALED_COLUMNS:
        yield f"tile {m}x{n} has no registers left for scales of each column of B: 128x128 has"


def dsl_partial_sets(config: KernelConfig) -> Iterator[str]:
    """Sets of partial sums take turns in the DSL's kernels of groups of one WGMMA."""
    sets = config.design.partial_sets
    if config.backend is Backend.CUTEDSL:
        yield from fitting.check_partial_sets(Facts(config))
    elif sets != fitting.PARTIAL_SETS[0]:
        yield f"{sets} sets of partial sums are for the cutedsl backend: others have no sets"
