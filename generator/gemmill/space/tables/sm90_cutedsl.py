"""Hopper: the schedules worth compiling with the CuTe DSL. Rows as in tables/sm90.py.

A variant costs a second or two, where one of CUTLASS costs twenty: these may be tried in numbers.
"""

from gemmill.space.tables.sm90 import (
    BASIC,
    BETWEEN,
    COOPERATIVE,
    CORE_SPLIT_K,
    GROUP_SPLIT_K,
    PINGPONG,
    PREFILL,
    SPLIT_K,
    Row,
    SplitKRow,
)

Tables = tuple[tuple[Row, ...], tuple[Row, ...], tuple[SplitKRow, ...]]
"""Rows for many rows of A, for few (computed with swap_ab), and for few with K divided."""

WIDE: tuple[Row, ...] = (
    *PREFILL,
    *BETWEEN,
    ((64, 96, 128), (2, 1, 1), PINGPONG),
    ((128, 96, 128), (2, 1, 1), PINGPONG),
    ((128, 160, 128), (1, 2, 1), PINGPONG),
    ((128, 192, 128), (1, 2, 1), COOPERATIVE),
    ((128, 224, 128), (2, 1, 1), COOPERATIVE),
    ((256, 96, 128), (2, 1, 1), COOPERATIVE),
    ((256, 192, 128), (2, 1, 1), COOPERATIVE),
)
"""Many rows."""

NARROW: tuple[Row, ...] = (
    ((64, 16, 256), (1, 1, 1), PINGPONG),
    ((64, 32, 256), (1, 1, 1), PINGPONG),
    ((64, 48, 256), (1, 1, 1), PINGPONG),
    ((64, 64, 256), (1, 1, 1), PINGPONG),
    ((64, 64, 256), (2, 1, 1), PINGPONG),
    ((64, 64, 128), (1, 1, 1), BASIC),
    ((64, 96, 128), (1, 1, 1), PINGPONG),
    ((64, 128, 128), (1, 1, 1), PINGPONG),
    ((64, 128, 128), (2, 1, 1), PINGPONG),
    ((128, 64, 128), (1, 1, 1), COOPERATIVE),
    ((128, 64, 256), (2, 1, 1), COOPERATIVE),
    ((128, 128, 128), (1, 1, 1), PINGPONG),
)
"""Few rows, computed with swap_ab."""

GROUP_WIDE: tuple[Row, ...] = (
    ((128, 128, 128), (1, 1, 1), COOPERATIVE),
    ((128, 128, 128), (2, 1, 1), COOPERATIVE),
    ((128, 128, 128), (1, 2, 1), COOPERATIVE),
    ((128, 96, 128), (2, 1, 1), COOPERATIVE),
    ((128, 160, 128), (2, 1, 1), COOPERATIVE),
    ((256, 64, 128), (2, 1, 1), COOPERATIVE),
    ((64, 128, 128), (1, 1, 1), BASIC),
)
GROUP_NARROW: tuple[Row, ...] = (
    ((64, 16, 256), (1, 1, 1), BASIC),
    ((64, 32, 256), (1, 1, 1), BASIC),
    ((64, 64, 128), (1, 1, 1), BASIC),
    ((128, 32, 256), (1, 1, 1), COOPERATIVE),
    ((128, 64, 128), (1, 1, 1), COOPERATIVE),
)
"""The same with scales in groups along K, where registers hold sums twice."""

CORE: Tables = (
    (
        ((128, 128, 128), (1, 1, 1), PINGPONG),
        ((128, 128, 128), (2, 1, 1), PINGPONG),
        ((64, 128, 128), (2, 1, 1), PINGPONG),
        ((128, 256, 128), (2, 1, 1), COOPERATIVE),
        ((128, 256, 128), (1, 2, 1), COOPERATIVE),
        ((256, 128, 128), (2, 1, 1), COOPERATIVE),
    ),
    (((64, 32, 256), (1, 1, 1), PINGPONG), ((64, 64, 256), (1, 1, 1), PINGPONG)),
    (CORE_SPLIT_K[0], CORE_SPLIT_K[2], CORE_SPLIT_K[4], CORE_SPLIT_K[6]),
)
FEW: Tables = ((CORE[0][1], CORE[0][3]), (CORE[1][1],), (CORE[2][1],))
"""What e4m3 to bf16 gets, and what the others make do with: an assumption from what CUTLASS's variants of these shapes did,
to be measured."""

WIDEST: Tables = (WIDE, NARROW, SPLIT_K)
GROUP_WIDEST: Tables = (GROUP_WIDE, GROUP_NARROW, GROUP_SPLIT_K)
"""What is worth timing."""

GROUP_CORE: Tables = (
    (GROUP_WIDE[1], GROUP_WIDE[2], GROUP_WIDE[4]),
    (GROUP_NARROW[1], GROUP_NARROW[4]),
    (GROUP_SPLIT_K[0], GROUP_SPLIT_K[6]),
)
"""What blocks of 128 get, e4m3 to bf16: an assumption too."""
