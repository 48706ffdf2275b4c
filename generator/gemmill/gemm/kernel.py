"""A persistent kernel: a warp keeps stages of operands under way by TMA, consumer groups multiply them with WGMMA.

Read in the order in which the machine works: here the launch, shared memory, barriers and roles. Then follow the source of
tiles (`walk.py`, or `experts.py` where rows belong to experts) with its producers, `pipeline.py`, `consumer.py`,
`mainloop.py` and a family's epilogue.
"""

# mypy: ignore-errors
from dataclasses import dataclass
from types import SimpleNamespace

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup

from gemmill.gemm.arguments import read_fields
from gemmill.gemm.elements import ELEMENT_OF
from gemmill.gemm.limits import SLAB
from gemmill.gemm.packed import Packed
from gemmill.gemm.pipeline import GroupOrder, Pipeline


@dataclass
class Tma(Packed):
    """A tensor in memory as TMA copies it: the atom, and the tensor of coordinates."""

    atom: cute.CopyAtom
    coords: cute.Tensor


@dataclass
class Layouts(Packed):
    """Layouts in shared memory: stages of X and Y, and boxes of D."""

    x: cute.ComposedLayout
    y: cute.ComposedLayout
    d: cute.ComposedLayout


@dataclass(frozen=True)
class Shared:
    """Shared memory of a CTA, as tensors and pointers."""

    x: cute.Tensor
    y: cute.Tensor
    d: cute.Tensor
    storage: object
    """All of it, by name: `x`, `y`, `d`, `vectors`, `scales`, and what the source of tiles and the family add."""


def boxes_of_fragments(plan, out_type: type) -> cute.ComposedLayout:
    """Boxes of D on their way out, of all consumer groups, as `stmatrix` writes them: 64 rows of X by rows of Y."""
    kinds = warpgroup.SmemLayoutAtomKind
    along_x = {128: kinds.MN_SW128}
    along_y = {128: kinds.K_SW128, 64: kinds.K_SW64, 32: kinds.K_SW32}
    kind = along_x[2 * SLAB] if plan.swap_ab else along_y[2 * plan.store_columns]
    shape = (SLAB, plan.store_columns, plan.store_buffers * plan.consumer_groups)
    atom = warpgroup.make_smem_layout_atom(kind, out_type)
    return cute.tile_to_shape(atom, shape, order=(1, 0, 2) if plan.swap_ab else (0, 1, 2))


class Kernel:
    """One kernel. A family gives its arguments, the source of tiles and the epilogue."""

    header: str
    """The file below kernels/ that declares the arguments of a call."""
    struct: str
    """The arguments' struct."""

    def __init__(self, plan, out_type: type) -> None:
        self.plan, self.out_type = plan, out_type
        self.x_type, self.y_type = ELEMENT_OF[plan.x_dtype], ELEMENT_OF[plan.y_dtype]

    # What families give ----------------------------------------------------------------------------------------------

    def enqueue(self, x: SimpleNamespace) -> None:
        """Enqueues a call. `x` has the fields of its struct and of `gemmill_launch`, and a ticket for kernels that wait."""
        raise NotImplementedError

    def elements(self) -> dict:
        """(element, alignment) of what lies at the struct's addresses of `void`, by name."""
        operand, out = (self.x_type, 16), self.out_type
        return {"a": operand, "b": operand, "d": (out, 16), "bias": (out, 2), "workspace": (Float32, 16)}

    def own_storage(self) -> dict:
        """Shared memory of the epilogue's own, by name."""
        return {}

    def load_operands(self, loads: tuple, shared: Shared, pipeline: Pipeline, tiles, vectors):
        """The work of the warp that keeps stages under way by TMA."""
        raise NotImplementedError

    def copy(self, scales, shared: Shared, pipeline: Pipeline, tiles, vectors):
        """The work of the warps that copy what TMA does not bring."""
        raise NotImplementedError

    def consume(
        self, shared: Shared, pipeline: Pipeline, order: GroupOrder, store: Tma, tiles, vectors, ending, target
    ):
        """The work of the consumer groups."""
        raise NotImplementedError

    def reduce(self, shared: Shared, tiles, vectors, target):
        """Adds up sums of a cluster's CTAs, where these share a tile."""

    # The launch ------------------------------------------------------------------------------------------------------

    @cute.jit
    def __call__(self, call: cute.Pointer, how: cute.Pointer, ticket: Int64, stream: cuda.CUstream) -> Int32:
        """Enqueues a call whose struct lies at `call` and whose `gemmill_launch` at `how`."""
        fields = read_fields(self.header, self.struct, call, self.elements())
        fields.update(read_fields("core/abi.h", "gemmill_launch", how, self.elements()))
        fields.update(ticket=ticket, stream=stream)
        self.enqueue(SimpleNamespace(**fields))
        return Int32(0)

    def operand(self, address: cute.Pointer, shape: tuple, *strides: Int64) -> cute.Tensor:
        """An operand in memory, [rows, k] or [rows, k, weights]. Its rows begin at multiples of 16 bytes."""
        rows, *more = [cute.assume(stride, divby=128 // self.plan.x_dtype.bits) for stride in strides]
        return cute.make_tensor(address, cute.make_layout(shape, stride=(rows, 1, *more)))

    def stage_layout(self, element: type, rows: int) -> cute.ComposedLayout:
        """Stages of an operand, as TMA writes and WGMMA reads them without bank conflicts."""
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, element)
        return cute.tile_to_shape(atom, (rows, self.plan.tile_k, self.plan.stages), order=(0, 1, 2))

    def layouts(self, layout_d: cute.ComposedLayout) -> Layouts:
        """Layouts in shared memory, with that of the boxes of D."""
        plan = self.plan
        return Layouts(
            self.stage_layout(self.x_type, plan.tile_x), self.stage_layout(self.y_type, plan.tile_y), layout_d
        )

    def load(self, tensor: cute.Tensor, layout: cute.ComposedLayout, rows: int, sharers: int) -> Tma:
        """TMA that loads a stage of an operand, in slices when a cluster's CTAs share it."""
        op = cpasync.CopyBulkTensorTileG2SOp() if sharers == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
        stage = cute.slice_(layout, (None, None, 0))
        return Tma(*cpasync.make_tiled_tma_atom(op, tensor, stage, (rows, self.plan.tile_k), num_multicast=sharers))

    def store(self, tensor: cute.Tensor, layout: cute.ComposedLayout, box: tuple) -> Tma:
        """TMA that stores a box of D."""
        op, one = cpasync.CopyBulkTensorTileS2GOp(), cute.slice_(layout, (None, None, 0))
        return Tma(*cpasync.make_tiled_tma_atom(op, tensor, one, box))

    def launch(
        self,
        loads: tuple,
        store: Tma,
        layouts: Layouts,
        vectors,
        scales,
        ending,
        tiles,
        target,
        grid,
        cluster,
        how: tuple,
    ) -> None:
        """Enqueues the kernel on `grid` CTAs. `how` is whether it may overlap the one before, and the stream."""
        programmatic_launch, stream = how
        self.kernel(loads, store, layouts, vectors, scales, ending, tiles, target).launch(
            grid=(grid, 1, 1),
            block=(self.plan.threads, 1, 1),
            cluster=(cluster, 1, 1),
            min_blocks_per_mp=self.plan.ctas_of_sm,
            preferred_smem_carveout=100,  # left open, the DSL would ask a driver
            use_pdl=programmatic_launch,
            stream=stream,
        )

    # The kernel ------------------------------------------------------------------------------------------------------

    def _storage(self, layouts: Layouts, tables: dict) -> type:
        plan, range_of, aligned = self.plan, cute.struct.MemRange, cute.struct.Align
        fields = {
            "full": range_of[Int64, plan.stages],
            "empty": range_of[Int64, plan.stages],
            "turn": range_of[Int64, 2],
            **tables,
            "x": aligned[range_of[self.x_type, cute.cosize(layouts.x)], 1024],
            "y": aligned[range_of[self.y_type, cute.cosize(layouts.y)], 1024],
            "d": aligned[range_of[self.out_type, max(plan.store_elements, 8)], 1024],
            "vectors": range_of[Float32, max(plan.consumer_groups * plan.vector_words, 4)],
            **self.own_storage(),
            "scales": aligned[range_of[Float32, max(plan.stages * plan.scales, 4)], 16],
        }
        return cute.struct(type("SharedStorage", (), {"__annotations__": fields}))

    @cute.kernel
    def kernel(
        self,
        loads: tuple,
        store: Tma,
        layouts: Layouts,
        vectors,
        scales,
        ending,
        tiles,
        target,
    ):
        plan = self.plan
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        first_producer = plan.consumers // 32

        storage = cutlass.utils.SmemAllocator().allocate(self._storage(layouts, tiles.storage(plan)))
        shared = Shared(
            storage.x.get_tensor(layouts.x.outer, swizzle=layouts.x.inner),
            storage.y.get_tensor(layouts.y.outer, swizzle=layouts.y.inner),
            storage.d.get_tensor(layouts.d.outer, swizzle=layouts.d.inner),
            storage,
        )
        pipeline = Pipeline(plan, storage.full.data_ptr(), storage.empty.data_ptr())
        order = GroupOrder(storage.turn.data_ptr())
        if warp == first_producer:
            for tma in (*loads[:2], store):
                cpasync.prefetch_descriptor(tma.atom)
            with cute.arch.elect_one():
                pipeline.init()
                order.init()
                cute.arch.mbarrier_init_fence()
        tiles = tiles.started(plan, storage, vectors.k, target)

        if warp >= first_producer:
            if cutlass.const_expr(plan.moves_registers):
                cute.arch.setmaxregister_decrease(plan.producer_registers)
            if warp == first_producer:
                self.load_operands(loads, shared, pipeline, tiles, vectors)
            if cutlass.const_expr(plan.copying_threads):
                if warp > first_producer and warp <= first_producer + plan.scale_warps:
                    self.copy(scales, shared, pipeline, tiles, vectors)
        else:
            if cutlass.const_expr(plan.moves_registers):
                cute.arch.setmaxregister_increase(plan.consumer_registers)
            self.consume(shared, pipeline, order, store, tiles, vectors, ending, target)
        if cutlass.const_expr(plan.split_k):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
            if warp < first_producer:
                self.reduce(shared, tiles, vectors, target)
            cute.arch.cluster_arrive_relaxed()  # nobody leaves while others still read its sums
            cute.arch.cluster_wait()
        if cutlass.const_expr(plan.cluster_size > 1):  # nobody leaves while others still signal its barriers
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
