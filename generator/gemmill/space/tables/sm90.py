"""Hopper: the schedules worth compiling. Rows are (tile MxNxK, cluster MxN, schedule).

With swap_ab, tile rows run along the columns of D (the weights) and tile columns along its rows (the tokens).
"""

from gemmill.vocab import KernelSchedule, RasterOrder

COOPERATIVE = KernelSchedule.COOPERATIVE
PINGPONG = KernelSchedule.PINGPONG
BASIC = KernelSchedule.BASIC

Row = tuple[tuple[int, int, int], tuple[int, int, int], KernelSchedule]
SplitKRow = tuple[tuple[int, int, int], KernelSchedule, int]
GroupLoopRow = tuple[Row, int]

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
"""Many rows: bound by the tensor core."""

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
"""Widths at which the tiles of frequent shapes just fill 132 SMs: 2048 x 1280 is 128 tiles of 128 x 160, where 128 x 128
makes 160, and 512 x 6144 is 128 of 128 x 192. With one tile a CTA, pingpong leaves one of its groups idle: cooperative."""

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
"""Few rows, computed with swap_ab: bound by reading the weights."""

STREAM_K: tuple[Row, ...] = (((128, 128, 128), (1, 1, 1), COOPERATIVE),)
"""Fewer tiles than SMs, computed with swap_ab."""

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
"""(tile, schedule, stages): few rows; one or two CTAs an SM."""

SPLITS = (1, 2, 3, 4, 8)
RASTERS = (
    (RasterOrder.HEURISTIC, 1),
    (RasterOrder.ALONG_M, 2),
    (RasterOrder.ALONG_M, 8),
    (RasterOrder.ALONG_N, 2),
    (RasterOrder.ALONG_N, 8),
)
"""(raster order, swizzle): launch settings, tried on kernels of many tiles."""

UNALIGNED_TILE = (64, 64, 64)

CORE_PREFILL: tuple[Row, ...] = (
    ((128, 128, 128), (1, 1, 1), PINGPONG),
    ((128, 128, 128), (2, 1, 1), PINGPONG),
    ((128, 128, 128), (1, 2, 1), PINGPONG),
    ((64, 128, 128), (2, 1, 1), PINGPONG),
    ((128, 256, 128), (1, 2, 1), COOPERATIVE),
)
CORE_DECODE: tuple[Row, ...] = (
    ((64, 32, 256), (1, 1, 1), PINGPONG),
    ((64, 64, 256), (1, 1, 1), PINGPONG),
    ((128, 128, 128), (1, 1, 1), PINGPONG),
)
CORE_SPLIT_K: tuple[SplitKRow, ...] = (
    ((64, 16, 256), BASIC, 4),
    ((64, 16, 512), BASIC, 5),
    ((64, 32, 256), BASIC, 4),
    ((64, 32, 256), BASIC, 8),
    ((64, 64, 256), BASIC, 3),
    ((64, 64, 256), BASIC, 7),
    ((128, 128, 128), COOPERATIVE, 6),
)
"""What every kind of problem gets: begun from a greedy choice, as `gemmill prune` makes it, over a sweep of e4m3 to bf16 at 84
shapes (H200, 2026-11-20), with those added that later sweeps showed to be missing."""

MORE_PREFILL: tuple[Row, ...] = (((128, 256, 128), (2, 1, 1), COOPERATIVE), *BETWEEN)
MORE_DECODE: tuple[Row, ...] = (
    ((64, 16, 256), (1, 1, 1), PINGPONG),
    ((128, 64, 128), (1, 1, 1), COOPERATIVE),
)
"""What the most frequent problem, e4m3 to bf16, gets besides."""

MORE_STREAM_K: tuple[Row, ...] = (
    ((128, 128, 128), (2, 1, 1), COOPERATIVE),
    ((128, 256, 128), (2, 1, 1), COOPERATIVE),
    ((256, 128, 128), (2, 1, 1), COOPERATIVE),
)
"""For e4m3 to bf16, where tiles fill the SMs one and a bit times: 4096 x 1280 is 160 tiles of 256 x 128."""

FEW_PREFILL: tuple[Row, ...] = (CORE_PREFILL[0], CORE_PREFILL[2], CORE_PREFILL[3])
FEW_DECODE: tuple[Row, ...] = (CORE_DECODE[1],)
FEW_SPLIT_K: tuple[SplitKRow, ...] = (CORE_SPLIT_K[0], CORE_SPLIT_K[2], CORE_SPLIT_K[4])
"""What the least frequent, s8 to f16, make do with."""

GROUP_SPLIT_K: tuple[SplitKRow, ...] = (
    ((64, 16, 256), BASIC, 4),
    ((64, 16, 256), BASIC, 9),
    ((64, 16, 512), BASIC, 5),
    ((128, 16, 256), COOPERATIVE, 6),
    ((64, 32, 256), BASIC, 4),
    ((64, 32, 256), BASIC, 8),
    ((64, 64, 256), BASIC, 3),
    ((64, 64, 256), BASIC, 6),
    ((128, 64, 256), COOPERATIVE, 4),
    ((128, 128, 128), COOPERATIVE, 6),
    ((64, 128, 128), BASIC, 4),
)
"""Few rows with scales in groups along K."""

GROUP_LOOP: tuple[GroupLoopRow, ...] = (
    (((128, 128, 128), (1, 1, 1), COOPERATIVE), 6),
    (((128, 128, 128), (2, 1, 1), COOPERATIVE), 6),
    (((128, 128, 128), (1, 2, 1), COOPERATIVE), 6),
    (((128, 112, 128), (2, 1, 1), COOPERATIVE), 6),
    (((128, 64, 128), (1, 2, 1), COOPERATIVE), 8),
)
"""Many rows with scales in groups along K, with the number of stages."""

BLOCKWISE: tuple[Row, ...] = (
    ((128, 128, 128), (1, 2, 1), COOPERATIVE),
    ((64, 128, 128), (1, 1, 1), PINGPONG),
)
"""CUTLASS's blockwise collectives, for comparison."""

GROUP_TABLES = (GROUP_SPLIT_K, GROUP_LOOP)
FEW_GROUP_TABLES = ((GROUP_SPLIT_K[0], GROUP_SPLIT_K[6]), (GROUP_LOOP[0],))
"""What the most frequent kind of groups gets (e4m3 to bf16, blocks of 128), and the others."""
