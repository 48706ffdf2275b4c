"""The limits of the hardware and of these kernels: the numbers of their plans."""

from gemmill.vocab import KernelSchedule

SLAB = 64
"""Rows of X that one WGMMA multiplies."""
SHARED_BYTES = 227 * 1024
"""Shared memory of one CTA at most (compute capability 9.0)."""
SHARED_BYTES_OF_SM = 228 * 1024
SHARED_BYTES_RESERVED = 1024
"""Shared memory that the system takes of each CTA."""
PROMOTION = 128
"""Elements along K whose products stay in the tensor core's narrower accumulator before promotion."""
STORE_COLUMNS = 64
"""Columns of Y in one box of D at most."""
FEW_FACTORS = 8
"""Registers for scales, at most, of which a second set may be had."""
STORE_BUFFERS = 2
ACCUMULATOR_REGISTERS = 192
"""Registers for sums, of the 232 that a consumer thread gets.

A tile of 128x208 in pingpong spilled 4,640 bytes and took twelve times as long (H200, 2026-11-21).
"""
OVERLAP_REGISTERS = 208
"""Registers for sums and scales, where the promotion of a K step's sums overlaps the next one's multiplications."""
AHEAD_REGISTERS = 200
"""The same with the next unit's scales, in kernels of two consumer groups. 128 x 128 needs 208 and spilled 116 bytes (nvcc
13.0, groups of 32).
"""
PARTIAL_REGISTERS = 64
"""Registers a thread may spend on partial sums of several groups at once."""
PREFETCH_BYTES = 128 * 1024
PREFETCH_SHARE = 4
"""The part of its first tile's weights that each CTA prefetches: a quarter of their K steps, up to 128 KB
(docs/notes/tiles.md).
"""
CONSUMER_GROUPS = {KernelSchedule.COOPERATIVE: 2, KernelSchedule.PINGPONG: 2, KernelSchedule.BASIC: 1}
SMALL_BOX = 8
"""Rows of A in the boxes of tiles of SMALL_TILE rows at most: as few as the swizzle of shared memory repeats after."""
SMALL_TILE = 32
LARGE_BOX = 16
"""Rows of A in the boxes of larger tiles.

With eight rows, 64 x 64 took 6 to 18 % longer at 48 to 60 rows (H200, 2026-11-22).
"""
