"""The order in which a persistent kernel visits its tiles."""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from gemmill.cutedsl.packed import Packed


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
