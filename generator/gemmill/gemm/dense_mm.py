"""A kernel of one product of A and B, whatever becomes of its sums."""

# mypy: ignore-errors
import cutlass
import cutlass.cute as cute
from cutlass import Int32

from gemmill.gemm import producer
from gemmill.gemm.kernel import Kernel, Layouts
from gemmill.gemm.pipeline import Pipeline
from gemmill.gemm.walk import Tiles


class DenseMm(Kernel):
    """One kernel whose tiles are those of one product."""

    def loads(self, a: cute.Tensor, b: cute.Tensor, layouts: Layouts) -> tuple:
        """TMA of X and of Y."""
        plan = self.plan
        x, y = (b, a) if plan.swap_ab else (a, b)
        of_x = self.load(x, layouts.x, plan.tile_x, plan.cluster_y)
        return of_x, self.load(y, layouts.y, plan.tile_y, plan.cluster_x)

    def tiles_along(self, m: Int32, n: Int32) -> tuple:
        """Clusters' tiles along X and along Y."""
        plan = self.plan
        size_x, size_y = (n, m) if plan.swap_ab else (m, n)
        tiles_x = cute.ceil_div(size_x, plan.tile_x * plan.cluster_x)
        return tiles_x, cute.ceil_div(size_y, plan.tile_y * plan.cluster_y)

    def clusters(self, tiles_x: Int32, tiles_y: Int32, sm_count: Int32) -> Int32:
        """Clusters that have all tiles between them, as many as a GPU holds at most."""
        plan = self.plan
        return cutlass.min(sm_count * plan.ctas_of_sm // plan.cluster_size, tiles_x * tiles_y)

    def load_operands(self, loads: tuple, shared, pipeline: Pipeline, tiles: Tiles, vectors):
        """Keeps every stage of X and Y under way."""
        producer.load_operands(self.plan, loads, shared, pipeline, tiles, vectors.m)

    def copy(self, scales, shared, pipeline: Pipeline, tiles: Tiles, vectors):
        """Copies the scales of each stage."""
        producer.load_scales(self.plan, scales, shared.storage.scales.data_ptr(), pipeline, vectors, tiles)
