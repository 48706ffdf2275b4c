"""A kernel of rows that belong to experts, whatever becomes of its sums: one launch for all experts.

Here is the call. Then follow the kernel (`kernel.py`), the source of its tiles (`experts.py`), its producers
(`expert_producer.py` and, where rows are found by their numbers, `gather.py`), and a family's consumers.
"""

# mypy: ignore-errors
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from gemmill.gemm import epilogue, gather
from gemmill.gemm import expert_producer as producer
from gemmill.gemm.experts import BAND, Experts, ExpertTiles, Vectors, Walk
from gemmill.gemm.kernel import Kernel, Shared
from gemmill.gemm.packed import Packed
from gemmill.gemm.pipeline import Pipeline


@cute.jit
def most_tiles(plan: cutlass.Constexpr, m: Int32, experts: Int32, slot: Int32):
    """Tiles of rows that experts can have at most."""
    tiles = m // plan.tile_m + cutlass.min(m, experts)  # of segments that follow one another
    if slot != 0:
        tiles = cute.ceil_div(slot, plan.tile_m) * experts
    return tiles


@dataclass
class Target(Packed):
    """Where D lies."""

    d: cute.Pointer
    ldd: Int64


class ExpertMm(Kernel):
    """One kernel, and the function that enqueues it. A family adds D's tensor and the work of the consumers."""

    of_column = None
    """Which scale in groups a column has, where columns are in an order of their own."""

    def vectors_of(self, x) -> Vectors:
        """What the epilogue reads of a call."""
        return Vectors(epilogue.vectors_of_call(x, x.tokens), x.b_scale_stride_expert)

    def ending_of(self, x):
        """What a family's consumers read of a call besides."""

    def stored(self, x) -> tuple:
        """D as a tensor, the layout of its boxes in shared memory, and a box's shape."""
        raise NotImplementedError

    def enqueue(self, x) -> None:
        """Enqueues one call."""
        plan = self.plan
        x.ldd = cute.assume(x.ldd, divby=128 // self.out_type.width)
        tensor_a = self.operand(x.a, (x.tokens, x.k), x.lda)
        tensor_b = self.operand(x.b, (x.n, x.k, x.weights), x.ldb, x.b_stride_expert)
        tensor_d, layout_d, box = self.stored(x)
        experts = Experts(x.offsets, x.offset_words, x.expert_map, x.experts, x.weights, x.slot, x.m)
        tokens = gather.Tokens(x.token_ids, x.id_words, x.m, x.tokens, x.a, x.lda)

        layouts = self.layouts(layout_d)
        layout_a, layout_b = (layouts.y, layouts.x) if plan.swap_ab else (layouts.x, layouts.y)
        load_b = self.load(tensor_b, layout_b, plan.tile_n, 1)
        load_a = load_b  # in vain, where rows are gathered
        if not plan.indexed:
            load_a = self.load(tensor_a, layout_a, plan.tile_m, plan.cluster_size)
        store = self.store(tensor_d, layout_d, box)

        tiles_n = cute.ceil_div(x.n, plan.tile_n * plan.cluster_size)
        tiles = most_tiles(plan, x.m, experts.count, experts.slot) * tiles_n
        clusters = cutlass.min(x.sm_count * plan.ctas_of_sm // plan.cluster_size, tiles)
        self.launch(
            (load_a, load_b),
            store,
            layouts,
            self.vectors_of(x),
            producer.group_scales_of(x),
            self.ending_of(x),
            ExpertTiles(experts, tokens, Walk(tiles_n, cute.fast_divmod_create_divisor_v2(BAND * tiles_n))),
            Target(x.d, x.ldd),
            clusters * plan.cluster_size,
            plan.cluster_size,
            (x.programmatic_launch, x.stream),
        )

    def load_operands(self, loads: tuple, shared: Shared, pipeline: Pipeline, tiles: ExpertTiles, vectors):
        """Keeps every stage of what TMA brings under way."""
        del vectors
        producer.load_operands(self.plan, loads, shared, pipeline, tiles)

    @cute.jit
    def copy(self, scales, shared: cutlass.Constexpr, pipeline: Pipeline, tiles: ExpertTiles, vectors):
        """Copies gathered rows of A, and scales in groups."""
        plan, storage = self.plan, shared.storage
        if cutlass.const_expr(plan.indexed):
            bytes_a = (storage.y if plan.swap_ab else storage.x).data_ptr().toint()
            to = (bytes_a, storage.scales.data_ptr())
            gather.load_tokens(plan, scales, to, pipeline, tiles, vectors, self.of_column)
        else:
            to = storage.scales.data_ptr()
            producer.load_scales(plan, scales, to, pipeline, tiles, vectors, self.of_column)
