"""The order in which a kernel visits its tiles."""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from gemmill.gemm.packed import Packed


@dataclass
class Job(Packed):
    """What one CTA does: every `step`-th tile of its cluster from `first` on, and of each these K steps."""

    first: Int32
    step: Int32
    k_first: Int32
    k_steps: Int32


@dataclass
class Walk(Packed):
    """The order of clusters' tiles, counted along X and Y. Neighbours in time are neighbours in space: one band follows
    the other, and each is swept across first.

    The host makes the divisors, by which a tile's place takes a few multiplications. Two divisions took 500 cycles, in
    which a cooperative kernel multiplied nothing (H200, 2026-11-21).
    """

    tiles_x: Int32
    tiles_y: Int32
    along_x: Int32
    """Whether bands lie along X."""
    swizzle: Int32
    """Width of a band."""
    band: cute.FastDivmodDivisorV2
    """Tiles in a band."""
    width: cute.FastDivmodDivisorV2
    """Width of every band but perhaps the last."""
    last_width: cute.FastDivmodDivisorV2

    @cute.jit
    def tiles(self) -> Int32:
        """How many tiles there are."""
        return self.tiles_x * self.tiles_y

    @cute.jit
    def at(self, index: Int32):
        """The tile (x, y) that comes `index`-th."""
        band, inside = divmod(index, self.band)
        major, minor = divmod(inside, self.width)
        across = self.tiles_x
        if self.along_x != 0:
            across = self.tiles_y
        if (band + 1) * self.swizzle > across:
            major, minor = divmod(inside, self.last_width)
        minor = minor + band * self.swizzle
        x, y = minor, major
        if self.along_x != 0:
            x, y = major, minor
        return x, y


@cute.jit
def walk_over(tiles_x: Int32, tiles_y: Int32, raster_order: Int32, swizzle: Int32) -> Walk:
    """Makes the walk on the host. The raster order is 1 along X, 2 along Y, 0 along the one that has fewer tiles (as
    CUTLASS chooses)."""
    along_x = Int32(raster_order == 1)
    if raster_order == 0:
        along_x = Int32(tiles_y > tiles_x)
    along, across = tiles_y, tiles_x
    if along_x != 0:
        along, across = tiles_x, tiles_y
    rest = across % swizzle
    if rest == 0:
        rest = swizzle
    divisors = [cute.fast_divmod_create_divisor_v2(divisor) for divisor in (swizzle * along, swizzle, rest)]
    return Walk(tiles_x, tiles_y, along_x, swizzle, *divisors)


@cute.jit
def tile_of(plan: cutlass.Constexpr, walk: Walk, index: Int32):
    """This CTA's tile (x, y) of the `index`-th tile of its cluster."""
    x, y = walk.at(index)
    if cutlass.const_expr(plan.cluster_size > 1):
        rank = cute.arch.block_idx_in_cluster()
        x = x * plan.cluster_x + rank % plan.cluster_x
        y = y * plan.cluster_y + rank // plan.cluster_x
    return x, y


def rows_back(plan, at_m: Int32, m: Int32) -> Int32:
    """By how many rows the `at_m`-th tile of A moves back to lie within A, unless A is smaller than a tile.

    Rows that two tiles then share are stored twice, with the same bits. To fill what is beyond A with zeros takes TMA
    longer than to load it: 40 % of a decode kernel's time (docs/notes/tiles.md).
    """
    return cutlass.max(Int32(0), (at_m + 1) * plan.tile_m - cutlass.max(m, Int32(plan.tile_m)))


def steps_before(plan, k_steps: Int32, place: Int32, slices) -> Int32:
    """K steps that lie before the `place`-th of a number of slices: whole slice steps are dealt out evenly."""
    unit = plan.slice_step // plan.tile_k
    if unit == 1:
        return k_steps * place // slices
    return cutlass.min(cute.ceil_div(k_steps, unit) * place // slices * unit, k_steps)
