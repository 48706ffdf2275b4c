"""The order in which a kernel visits its tiles, and its stages."""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from gemmill.cutedsl.packed import Packed


@dataclass
class Job(Packed):
    """What one CTA does: every `step`-th tile of its cluster from `first` on, and of each these K steps."""

    first: Int32
    step: Int32
    k_first: Int32
    k_steps: Int32


@dataclass
class Walk(Packed):
    """Tiles of clusters, counted along X and Y, and how neighbours in time are neighbours in space."""

    tiles_x: Int32
    tiles_y: Int32
    raster_order: Int32
    """0 along the longer side's other (as CUTLASS chooses), 1 along X, 2 along Y."""
    swizzle: Int32
    """Width of the band across the raster order that is swept together."""

    @cute.jit
    def tiles(self) -> Int32:
        """How many there are."""
        return self.tiles_x * self.tiles_y

    @cute.jit
    def at(self, index: Int32):
        """The tile (x, y) that comes `index`-th: across a band first, then along it, then to the next band."""
        along_x = self.raster_order == 1
        if self.raster_order == 0:
            along_x = self.tiles_y > self.tiles_x
        along, across = self.tiles_y, self.tiles_x
        if along_x:
            along, across = self.tiles_x, self.tiles_y
        band = index // (self.swizzle * along)
        inside = index - band * self.swizzle * along
        width = cutlass.min(self.swizzle, across - band * self.swizzle)
        major = inside // width
        minor = band * self.swizzle + inside - major * width
        x, y = minor, major
        if along_x:
            x, y = major, minor
        return x, y


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
    longer than to load it: 40 % of a decode kernel's time (docs/notes/groups.md).
    """
    return cutlass.max(Int32(0), (at_m + 1) * plan.tile_m - cutlass.max(m, Int32(plan.tile_m)))


@cute.jit
def advance(plan: cutlass.Constexpr, state: tuple):
    """The (stage, phase) after this one."""
    stage, phase = state
    stage = stage + 1
    if stage == plan.stages:
        stage = Int32(0)
        phase = phase ^ 1
    return stage, phase
