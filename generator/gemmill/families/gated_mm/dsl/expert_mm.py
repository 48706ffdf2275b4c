"""D[m, h] = activation(gate) up on Hopper, of rows that belong to experts: one launch for all of them.

Read in the order in which the machine works. First come `facts.py`, and here the call. Then follows what kernels of experts
share (`expert_mm.py` of gemmill.gemm, and what it names). Last are `consumer.py`, `values.py` and `ending.py`.
"""

# mypy: ignore-errors
import cutlass.cute as cute

from gemmill.families.gated_mm.config import GatedConfig
from gemmill.families.gated_mm.dsl import consumer
from gemmill.families.gated_mm.dsl.ending import Ending, ending_of, layout_of, storage_of
from gemmill.families.gated_mm.dsl.plan import Plan
from gemmill.gemm.elements import ELEMENT_OF
from gemmill.gemm.expert_mm import ExpertMm


class ExpertGatedMm(ExpertMm):
    """One kernel, and the function that launches it. Raises ValueError for a config that it cannot be made of."""

    header, struct = "gated_mm/abi.h", "gemmill_gated_mm_args"

    def __init__(self, config: GatedConfig) -> None:
        super().__init__(Plan(config), ELEMENT_OF[config.out_dtype])

    def ending_of(self, x) -> Ending:
        """What the ending of a call reads and writes."""
        return ending_of(self.plan, x)

    def stored(self, x) -> tuple:
        """D as a tensor, the layout of its boxes in shared memory, and a box's shape."""
        plan = self.plan
        tensor = cute.make_tensor(x.d, cute.make_layout((x.m, x.n // 2), stride=(x.ldd, 1)))
        return tensor, layout_of(plan, self.out_type), (plan.store_rows, plan.store_columns)

    def own_storage(self) -> dict:
        """Shared memory of the epilogue's own, by name."""
        return storage_of(self.plan)

    def consume(self, shared, pipeline, order, store, tiles, vectors, ending, target):
        """Each group multiplies and ends its part of every tile or, in pingpong, every second tile."""
        consumer.consume(self.plan, shared, pipeline, order, store, tiles, vectors, ending, target)
