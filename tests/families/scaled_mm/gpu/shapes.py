"""The shapes at which variants are tested, by level."""

import random
from collections.abc import Iterator

from gemmill.families.scaled_mm.accepts import accepted
from gemmill.manifest import KernelEntry
from gemmill.vocab import RasterOrder

Shape = tuple[int, int, int]

FIRST: Shape = (77, 136, 272)
"""Ragged in every dimension for every tile, and of several steps along K; 16-byte rows everywhere."""

FIXED: tuple[Shape, ...] = (
    (1, 8, 16),
    (16, 128, 128),
    (3, 2056, 112),
    (127, 264, 528),
    (257, 520, 1040),
    (129, 72, 2064),
    (64, 1024, 4096),
)
"""One element of alignment in each dimension; whole tiles; one below and above a tile; many steps; many tiles."""

UNALIGNED: tuple[Shape, ...] = (
    (1, 1, 1),
    (2, 3, 5),
    (7, 13, 17),
    (31, 1, 127),
    (67, 131, 3),
    (129, 257, 251),
    (1, 997, 64),
)
"""Rows that no TMA takes: primes, and single elements."""

RANDOM_SHAPES = 60
LARGEST = (600, 1100, 2100)
"""Ends of the range of random shapes."""


def takes_any_rows(entry: KernelEntry) -> bool:
    """Whether the variant takes rows of any length."""
    p = accepted(entry.config)
    return max(p.alignment_a, p.alignment_b, p.alignment_d) == 1


RAGGED_M: tuple[Shape, ...] = tuple((m, 264, 400) for m in (*range(1, 9), 15, 17, 31, 33, 63, 65, 100, 130))
"""For scales in groups: few rows, and numbers of rows other than multiples of 4, as TMA would want A's scales."""


def with_groups(entry: KernelEntry, shape: Shape) -> Shape:
    """The shape with more than one group along K, if the variant's scales are in groups: a single one would be a scale
    for each row."""
    m, n, k = shape
    return m, n, k + accepted(entry.config).group_size if k <= accepted(entry.config).group_size else k


def shapes_for(entry: KernelEntry, level: str) -> Iterator[Shape]:
    """(M, N, K) that the variant must take, at this level."""
    for shape in dict.fromkeys(_shapes_for(entry, level)):
        yield with_groups(entry, shape)


def _shapes_for(entry: KernelEntry, level: str) -> Iterator[Shape]:
    yield FIRST
    if level == "L0":
        return
    yield from FIXED
    if accepted(entry.config).group_size:
        yield from RAGGED_M
    yield from _around_tile(entry)
    yield from _beyond_a_band(entry)
    if takes_any_rows(entry):
        yield from UNALIGNED
    if level == "L2":
        yield from _random(entry)


def _around_tile(entry: KernelEntry) -> Iterator[Shape]:
    """More than one tile along each dimension, and a last one that is nearly empty."""
    m, n, k = entry.config.design.tile_shape_mnk
    if entry.config.design.swap_ab:
        m, n = n, m
    p = accepted(entry.config)
    yield 2 * m + 1, 2 * n + p.alignment_d, 5 * k + max(p.alignment_a, p.alignment_b)


def _beyond_a_band(entry: KernelEntry) -> Iterator[Shape]:
    """Tiles for a whole band and a last one that is narrower, where the variant sweeps bands."""
    (m, n, k), (cluster_m, cluster_n, _) = (
        entry.config.design.tile_shape_mnk,
        entry.config.design.cluster_shape_mnk,
    )
    width = entry.config.launch.swizzle
    if width > 1 and entry.config.launch.raster_order is RasterOrder.ALONG_N:
        yield width * cluster_m * m + 1, n + accepted(entry.config).alignment_d, k
    elif width > 1:
        yield m + 1, width * cluster_n * n + accepted(entry.config).alignment_d, k


def _random(entry: KernelEntry) -> Iterator[Shape]:
    p = accepted(entry.config)
    step_k = max(p.alignment_a, p.alignment_b)
    generator = random.Random(0)
    for _ in range(RANDOM_SHAPES):
        m, n, k = (int(generator.triangular(1, end, 1)) for end in LARGEST)
        yield m, -(-n // p.alignment_d) * p.alignment_d, -(-k // step_k) * step_k
