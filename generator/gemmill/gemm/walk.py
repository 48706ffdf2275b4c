"""The order in which a kernel visits its tiles."""

# mypy: ignore-errors
from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from gemmill.gemm import epilogue
from gemmill.gemm.packed import Packed


@dataclass
class Job(Packed):
    """What one CTA does: every `step`-th tile of its cluster from `first` on, and of each these K steps."""

    first: Int32
    step: Int32
    k_first: Int32
    k_steps: Int32
    slice: Int32
    """Which slice of K these steps are."""


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


@dataclass(frozen=True)
class WorkTile:
    """A consumer group's part of a tile."""

    x0: Int32
    """Its first row of X."""
    y0: Int32
    """Its first row of Y."""
    n0: Int32
    """The tile's first column of B."""


@dataclass
class Tiles(Packed):
    """The tiles of one product as a source for producers and consumers. A tile is its number in the walk."""

    walk: Walk
    constant_weights: Int32
    """Whether nobody writes the weights before the kernel reads them."""
    plan: object = None
    job: Job | None = None

    def storage(self, plan) -> dict:
        """Shared memory that the search for tiles needs, by name: none."""
        del plan
        return {}

    def started(self, plan, storage, k: Int32, target) -> "Tiles":
        """The source on a CTA whose barriers are made: other CTAs' are, too. Where CTAs share a tile, `target` has the
        number of slices of K."""
        del storage
        if plan.cluster_size > 1:
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()
        cute.arch.griddepcontrol_launch_dependents()
        k_steps = cute.ceil_div(k, plan.tile_k)
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        job = Job(block // plan.cluster_size, blocks // plan.cluster_size, Int32(0), k_steps, Int32(0))
        if plan.divides_k:
            slices = target.slices
            if plan.split_k_parallel:
                tile, rank = divmod(block // plan.cluster_size, slices)
            else:
                rank = cute.arch.block_idx_in_cluster()
            begin, end = (steps_before(plan, k_steps, place, slices) for place in (rank, rank + 1))
            if plan.split_k:
                tile = block // slices
            job = Job(tile, self.walk.tiles(), begin, end - begin, rank)
        return replace(self, plan=plan, job=job)

    def first(self, skipped: Int32):
        """The first tile of this CTA behind so many."""
        return self.job.first + skipped * self.job.step

    def after(self, tile: Int32, count: int):
        """The `count`-th tile of this CTA behind one."""
        return tile + count * self.job.step

    def has(self, tile: Int32):
        """Whether there is such a tile."""
        return tile < self.walk.tiles()

    def expert_of(self, tile: Int32, expert: Int32):
        """The expert of a tile, which is always the first."""
        del tile
        return expert

    @cute.jit
    def at(self, tile: Int32):
        """(x, y) of this CTA's part of a tile of its cluster, counted in tiles."""
        x, y = self.walk.at(tile)
        if cutlass.const_expr(self.plan.cluster_size > 1):
            rank = cute.arch.block_idx_in_cluster()
            x = x * self.plan.cluster_x + rank % self.plan.cluster_x
            y = y * self.plan.cluster_y + rank // self.plan.cluster_x
        return x, y

    def work(self, tile: Int32, expert: Int32, part: Int32, m: Int32):
        """The part of a tile that a consumer group has. A has `m` rows."""
        del expert
        plan = self.plan
        at_x, at_y = self.at(tile)
        x0, y0 = at_x * plan.tile_x, at_y * plan.tile_y
        if plan.swap_ab:
            y0 = y0 - rows_back(plan, at_y, m)
        else:
            x0 = x0 - rows_back(plan, at_x, m)
        return WorkTile(x0 + part * plan.group_rows, y0, x0 if plan.swap_ab else y0)

    def fetch(self, vectors, expert: Int32, work: WorkTile, thread: Int32) -> tuple:
        """Starts loads of what the epilogue of a tile reads."""
        del expert
        return epilogue.fetch(self.plan, vectors, thread, (work.x0, work.y0))


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
