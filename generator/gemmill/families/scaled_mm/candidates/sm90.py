"""Hopper: the schedules worth compiling. Rows are (tile MxNxK, cluster MxN, schedule).

With swap_ab, tile rows run along the columns of D (the weights) and tile columns along its rows (the tokens).
"""

from dataclasses import dataclass

from gemmill.vocab import KernelSchedule, RasterOrder

COOPERATIVE = KernelSchedule.COOPERATIVE
PINGPONG = KernelSchedule.PINGPONG
BASIC = KernelSchedule.BASIC

Row = tuple[tuple[int, int, int], tuple[int, int, int], KernelSchedule]
SplitKRow = tuple[tuple[int, int, int], KernelSchedule, int]


@dataclass(frozen=True, kw_only=True)
class Tables:
    """The schedules of one kind of problem, by the range of M."""

    wide: tuple[Row, ...]
    """for a large M"""
    low: tuple[Row, ...] = ()
    """for up to some hundreds: a wave or two of tiles of 64 rows, which no raster order helps"""
    narrow: tuple[Row, ...] = ()
    """for a small M, with swap_ab"""
    shared: tuple[SplitKRow, ...] = ()
    """as `low`, with so few stages that an SM holds two CTAs"""
    split_k: tuple[SplitKRow, ...] = ()
    """for a small M, where the CTAs of a cluster share K"""
    few_rows: tuple[SplitKRow, ...] = ()
    """for a small M by the kernel that walks over tiles (kernels/scaled_mm/few_rows_mm.cuh)"""
    wide_transposed: tuple[Row, ...] = ()
    """for a large M, with swap_ab"""
    parallel: tuple[Row, ...] = ()
    """for few tiles and a long K, which CTAs without a cluster share"""

    restarted: tuple[Row, ...] = ()
    """for a large M, with K divided in time: each CTA sums one slice after the other"""
    held: "Tables | None" = None
    """for batch invariance alone: schedules that divide K, and deal it out in one step whatever their depth (`HELD_STEPS`)"""

    fours: "Tables | None" = None
    """schedules with four sets of partial sums, for groups of one WGMMA"""

    def at_half_depth(self) -> "Tables":
        """The same schedules for operands of 16 bits, with half the elements along K: as many bytes."""

        def halved(row: Row) -> Row:
            (m, n, k), cluster, schedule = row
            return (m, n, k // 2), cluster, schedule

        return Tables(
            wide=tuple(map(halved, self.wide)),
            low=tuple(map(halved, self.low)),
            narrow=tuple(map(halved, self.narrow)),
            parallel=tuple(map(halved, self.parallel)),
            restarted=tuple(map(halved, self.restarted)),
            held=self.held and self.held.at_half_depth(),
            split_k=tuple(((m, n, k // 2), schedule, stages) for (m, n, k), schedule, stages in self.split_k),
            few_rows=tuple(((m, n, k // 2), schedule, stages) for (m, n, k), schedule, stages in self.few_rows),
            wide_transposed=tuple(map(halved, self.wide_transposed)),
        )


PREFILL: tuple[Row, ...] = (
    ((128, 128, 128), (1, 1, 1), PINGPONG),
    ((128, 128, 128), (2, 1, 1), PINGPONG),
    ((128, 128, 128), (1, 2, 1), PINGPONG),
    ((64, 128, 128), (1, 1, 1), PINGPONG),
    ((64, 128, 128), (2, 1, 1), PINGPONG),
    ((64, 256, 128), (1, 1, 1), PINGPONG),
    ((64, 256, 128), (2, 1, 1), PINGPONG),
    ((128, 256, 128), (1, 1, 1), COOPERATIVE),
    ((128, 256, 128), (2, 1, 1), COOPERATIVE),
    ((128, 256, 128), (1, 2, 1), COOPERATIVE),
    ((256, 128, 128), (1, 1, 1), COOPERATIVE),
    ((256, 128, 128), (2, 1, 1), COOPERATIVE),
    ((256, 128, 128), (1, 2, 1), COOPERATIVE),
)
"""Rows of the table for a large M (prefill): bound by the tensor core."""

BETWEEN: tuple[Row, ...] = (
    ((64, 160, 128), (1, 1, 1), PINGPONG),
    ((64, 192, 128), (1, 1, 1), PINGPONG),
    ((128, 96, 128), (1, 1, 1), PINGPONG),
    ((128, 160, 128), (2, 1, 1), PINGPONG),
    ((128, 192, 128), (2, 1, 1), PINGPONG),
    ((128, 160, 128), (2, 1, 1), COOPERATIVE),
    ((128, 192, 128), (2, 1, 1), COOPERATIVE),
    ((256, 160, 128), (2, 1, 1), COOPERATIVE),
)
"""Tiles that just fill 132 SMs at the widths of frequent shapes.

2048 x 1280 is 128 tiles of 128 x 160, where 128 x 128 makes 160. 512 x 6144 is 128 tiles of 128 x 192. With one tile a
CTA, pingpong leaves one of its groups idle, so these are cooperative.
"""

DECODE: tuple[Row, ...] = (
    ((64, 16, 256), (1, 1, 1), PINGPONG),
    ((64, 32, 256), (1, 1, 1), PINGPONG),
    ((64, 64, 128), (1, 1, 1), BASIC),
    ((64, 64, 256), (1, 1, 1), PINGPONG),
    ((64, 64, 256), (2, 1, 1), PINGPONG),
    ((64, 128, 128), (1, 1, 1), PINGPONG),
    ((64, 128, 128), (2, 1, 1), PINGPONG),
    ((128, 64, 128), (1, 1, 1), COOPERATIVE),
    ((128, 64, 256), (2, 1, 1), COOPERATIVE),
    ((128, 128, 128), (1, 1, 1), PINGPONG),
)
"""Schedules for a small M (decode), with swap_ab: bound by reading the weights."""

STREAM_K: tuple[Row, ...] = (((128, 128, 128), (1, 1, 1), COOPERATIVE),)
"""Schedules for fewer tiles than SMs, computed with swap_ab."""

SPLIT_K: tuple[SplitKRow, ...] = (
    ((64, 16, 256), BASIC, 4),
    ((64, 16, 256), BASIC, 9),
    ((64, 16, 512), BASIC, 5),
    ((128, 16, 256), COOPERATIVE, 3),
    ((128, 16, 256), COOPERATIVE, 6),
    ((64, 32, 256), BASIC, 4),
    ((64, 32, 256), BASIC, 8),
    ((128, 32, 256), COOPERATIVE, 5),
    ((64, 64, 256), BASIC, 3),
    ((64, 64, 256), BASIC, 7),
    ((128, 64, 256), COOPERATIVE, 4),
    ((64, 128, 128), BASIC, 4),
    ((128, 128, 128), COOPERATIVE, 3),
    ((128, 128, 128), COOPERATIVE, 6),
)
"""Schedules for a small M, as (tile, schedule, stages). One or two CTAs fit an SM."""

FEW_ROWS: tuple[SplitKRow, ...] = (
    ((64, 16, 256), BASIC, 5),
    ((64, 32, 256), BASIC, 4),
    ((64, 64, 128), BASIC, 5),
    ((64, 96, 128), BASIC, 4),
    ((64, 128, 128), BASIC, 3),
    ((128, 128, 128), COOPERATIVE, 4),
)
"""Schedules of the kernel that walks over tiles of few rows, as (tile, schedule, stages): two CTAs of a basic one fill an SM's shared
memory, one of a cooperative one."""

SPLITS = (1, 2, 3, 4, 8)
PARALLEL_SPLITS = (2, 3, 4, 6, 8)
HELD_SPLITS = (3, 4, 8)
HELD_STEPS = 2
"""K steps of 128 bytes of which slices are multiples: the depth of the kernels that split K for up to 32 rows."""
RASTERS = (
    (RasterOrder.HEURISTIC, 1),
    (RasterOrder.ALONG_M, 2),
    (RasterOrder.ALONG_M, 8),
    (RasterOrder.ALONG_N, 2),
    (RasterOrder.ALONG_N, 8),
)
"""Launch settings (raster order, swizzle), tried on kernels of many tiles."""

UNALIGNED_TILE = (64, 64, 64)

FOR_AZP = Tables(
    wide=(
        ((128, 128, 128), (1, 1, 1), PINGPONG),
        ((128, 128, 128), (1, 2, 1), PINGPONG),
        ((128, 192, 128), (2, 1, 1), PINGPONG),
        ((64, 128, 128), (2, 1, 1), PINGPONG),
        ((128, 128, 128), (2, 1, 1), PINGPONG),
    ),
    narrow=(((64, 64, 256), (1, 1, 1), PINGPONG),),
    split_k=(
        ((64, 16, 512), BASIC, 5),
        ((64, 32, 256), BASIC, 4),
        ((64, 64, 256), BASIC, 3),
        ((64, 16, 256), BASIC, 4),
    ),
)
"""The schedules that are compiled for zero points of users who lack the CuTe DSL."""

AT_LOSSES: tuple[Row, ...] = (
    ((128, 96, 128), (2, 1, 1), COOPERATIVE),
    ((128, 144, 128), (1, 1, 1), COOPERATIVE),
    ((128, 160, 128), (1, 1, 1), PINGPONG),
    ((128, 224, 128), (1, 1, 1), COOPERATIVE),
)
"""Tiles of the CuTe DSL's kernels where CUTLASS's lost 12 to 29 % for want of them (docs/notes/dsl_licence.md)."""

CORE = Tables(
    wide=(
        *FOR_AZP.wide,
        ((128, 80, 128), (2, 1, 1), COOPERATIVE),
        ((128, 160, 128), (2, 1, 1), COOPERATIVE),
        ((128, 256, 128), (2, 1, 1), COOPERATIVE),
        *AT_LOSSES,
    ),
    wide_transposed=(
        ((128, 160, 128), (2, 1, 1), COOPERATIVE),
        ((128, 192, 128), (2, 1, 1), COOPERATIVE),
    ),
    low=(
        ((64, 64, 128), (2, 1, 1), BASIC),
        ((64, 96, 128), (2, 1, 1), PINGPONG),
    ),
    few_rows=FEW_ROWS,
    narrow=(
        *FOR_AZP.narrow,
        ((64, 64, 128), (1, 1, 1), BASIC),
        ((64, 32, 256), (1, 1, 1), BASIC),
        ((128, 64, 128), (1, 2, 1), COOPERATIVE),
    ),
    split_k=(
        *FOR_AZP.split_k,
        ((128, 64, 128), COOPERATIVE, 6),
        ((128, 96, 128), COOPERATIVE, 5),
        ((64, 16, 256), BASIC, 3),
    ),
)
"""The schedules that are compiled for users who lack the CuTe DSL.

Those besides FOR_AZP's are the DSL's whose absence costs most at the measured shapes (docs/notes/dsl_licence.md). FEW_ROWS and
AT_LOSSES came later, and took part of the loss.
"""

FEW = Tables(wide=(CORE.wide[0], CORE.wide[3]), split_k=FOR_AZP.split_k[2:])
"""The schedules that the less frequent problems make do with there."""

VISITORS = Tables(wide=(CORE.wide[4], CORE.wide[3]), narrow=(((64, 16, 256), (1, 1, 1), PINGPONG),))
"""The schedules of kernels that end in a user's epilogue by CUTLASS's visitors."""

BESIDE_DSL = Tables(wide=(CORE.wide[0], CORE.wide[2], CORE.wide[4]), split_k=(CORE.split_k[1], CORE.split_k[3]))
"""The schedules of the default build next to the CuTe DSL's kernels for e4m3 to bf16.

Without the rest of CORE no row of the H200's table is 1 % slower (2026-11-22). The default selection then compiles in
half the time.
"""

BESIDE_DSL_FOR_INT8 = Tables(wide=(CORE.wide[0], CORE.wide[4]))

PLAIN = Tables(
    wide=(CORE.wide[4], CORE.wide[2], *CORE.wide[5:8], ((256, 128, 128), (2, 1, 1), COOPERATIVE)),
    low=(
        ((64, 128, 128), (2, 1, 1), BASIC),
        ((64, 256, 128), (2, 1, 1), PINGPONG),
        ((64, 80, 128), (2, 1, 1), PINGPONG),
    ),
    few_rows=FEW_ROWS,
    narrow=CORE.narrow[1:3],
    split_k=(CORE.split_k[3], CORE.split_k[1], CORE.split_k[4], ((128, 128, 128), COOPERATIVE, 6), CORE.split_k[0]),
).at_half_depth()
"""The schedules for operands of 16 bits that are compiled for users who lack the CuTe DSL, chosen as those of CORE."""

PLAIN_FEW = Tables(wide=PLAIN.wide[:1], narrow=PLAIN.narrow[:1], split_k=PLAIN.split_k[::3])

WIDEST = Tables(
    wide=tuple(dict.fromkeys((*PREFILL, *BETWEEN, *CORE.wide))),
    low=CORE.low,
    narrow=tuple(dict.fromkeys((*DECODE, *CORE.narrow))),
    split_k=tuple(dict.fromkeys((*SPLIT_K, *CORE.split_k))),
)
"""The schedules that are worth timing."""

BLOCKWISE: tuple[Row, ...] = (
    ((128, 128, 128), (1, 2, 1), COOPERATIVE),
    ((64, 128, 128), (1, 1, 1), PINGPONG),
)
"""The schedules of CUTLASS's blockwise collectives."""

GROUPS_OF_FEW_ROWS = Tables(
    wide=(),
    split_k=(*FEW_ROWS[:2], ((64, 48, 256), BASIC, 3), *FEW_ROWS[2:]),
)
"""Schedules for scales in groups, whose tiles one CTA walks over or a cluster divides."""
