"""Hopper: the schedules worth compiling with the CuTe DSL. Rows as in tables/sm90.py.

A variant costs a second or two, where one of CUTLASS costs twenty: these may be tried in numbers.
"""

from gemmill.space.tables.sm90 import BASIC, BETWEEN, COOPERATIVE, PINGPONG, PREFILL, Row

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

CORE_WIDE: tuple[Row, ...] = (
    ((128, 128, 128), (1, 1, 1), PINGPONG),
    ((128, 128, 128), (2, 1, 1), PINGPONG),
    ((64, 128, 128), (2, 1, 1), PINGPONG),
    ((128, 256, 128), (2, 1, 1), COOPERATIVE),
    ((128, 256, 128), (1, 2, 1), COOPERATIVE),
    ((256, 128, 128), (2, 1, 1), COOPERATIVE),
)
CORE_NARROW: tuple[Row, ...] = (
    ((64, 32, 256), (1, 1, 1), PINGPONG),
    ((64, 64, 256), (1, 1, 1), PINGPONG),
)
"""What every kind of problem gets: an assumption from what CUTLASS's variants of these shapes did, to be measured."""
FEW_WIDE: tuple[Row, ...] = (CORE_WIDE[1], CORE_WIDE[3])
FEW_NARROW: tuple[Row, ...] = (CORE_NARROW[1],)
"""What all but the most frequent problem, e4m3 to bf16, make do with."""

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
    ((128, 128, 128), (1, 1, 1), COOPERATIVE),
)
"""The same with scales in groups along K, where registers hold two copies of the sums."""

CORE_GROUP_WIDE: tuple[Row, ...] = (GROUP_WIDE[1], GROUP_WIDE[2], GROUP_WIDE[4])
CORE_GROUP_NARROW: tuple[Row, ...] = (GROUP_NARROW[1], GROUP_NARROW[4])
"""What blocks of 128 get, e4m3 to bf16: an assumption too."""
