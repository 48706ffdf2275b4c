"""D[m, h] = activation(gate) up on Hopper, gate and up being columns of one product, in one kernel.

Read in the order in which the machine works. First come `facts.py`, and here the call. Then follow the kernel, the
producer and the main loop of all GEMMs (gemmill.gemm). Last are `consumer.py`, `values.py` and `ending.py`.
"""

# mypy: ignore-errors
import cutlass.cute as cute
from cutlass import Int32

from gemmill.families.gated_mm.config import GatedConfig
from gemmill.families.gated_mm.dsl import consumer
from gemmill.families.gated_mm.dsl.ending import ending_of, layout_of, storage_of
from gemmill.families.gated_mm.dsl.plan import Plan
from gemmill.gemm import epilogue, producer
from gemmill.gemm.dense_mm import DenseMm
from gemmill.gemm.elements import ELEMENT_OF
from gemmill.gemm.walk import Tiles, walk_over


class GatedMm(DenseMm):
    """One kernel, and the function that launches it. Raises ValueError for a config that it cannot be made of."""

    header, struct = "gated_mm/abi.h", "gemmill_gated_mm_args"

    def __init__(self, config: GatedConfig) -> None:
        super().__init__(Plan(config), ELEMENT_OF[config.out_dtype])

    def enqueue(self, x) -> None:
        """Enqueues one product with its ending."""
        plan = self.plan
        tensor_a, tensor_b = self.operand(x.a, (x.m, x.k), x.lda), self.operand(x.b, (x.n, x.k), x.ldb)
        ldd = cute.assume(x.ldd, divby=16 // plan.result_bytes)
        tensor_d = cute.make_tensor(x.d, cute.make_layout((x.m, x.n // 2), stride=(ldd, 1)))
        layouts = self.layouts(layout_of(plan, self.out_type))
        loads = self.loads(tensor_a, tensor_b, layouts)
        store = self.store(tensor_d, layouts.d, (plan.store_rows, plan.store_columns))
        tiles_x, tiles_y = self.tiles_along(x.m, x.n)
        clusters = self.clusters(tiles_x, tiles_y, x.sm_count)
        self.launch(
            loads,
            store,
            layouts,
            epilogue.vectors_of_call(x, x.m),
            producer.group_scales_of(x) if plan.grouped else None,
            ending_of(plan, x),
            Tiles(walk_over(tiles_x, tiles_y, Int32(0), Int32(1)), x.constant_weights),
            None,
            clusters * plan.cluster_size,
            plan.cluster_size,
            (x.programmatic_launch, x.stream),
        )

    def own_storage(self) -> dict:
        """Shared memory of the epilogue's own, by name."""
        return storage_of(self.plan)

    def consume(self, shared, pipeline, order, store, tiles, vectors, ending, target):
        """Each group multiplies and ends its part of every tile or, in pingpong, every second tile."""
        consumer.consume(self.plan, shared, pipeline, order, store, tiles, vectors, ending, target)
