"""The order of K of GEMMs that share the main loop's design: CUTLASS's collectives, and the kernels of the CuTe DSL.

Tiles, clusters, swap-AB, schedules, rasterisation and the compiler do not enter: probed on an H200, 103 variants of e4m3
and 49 of bf16 that differ in these alone gave the same bits (docs/invariance.md).
"""

from gemmill.family import EXACT, Order
from gemmill.gemm.config import ACCUMULATOR_OF, Design, Operands
from gemmill.gemm.limits import PROMOTION
from gemmill.vocab import Accumulation, DType, TileScheduler

_JOINED = {
    TileScheduler.SPLIT_K: "float32, in the order of K",
    TileScheduler.SPLIT_K_PARALLEL: "float32, in the order of K",
    TileScheduler.RESTARTED: "float32, in the order of K",
    TileScheduler.STREAM_K: "a workspace",
}


def order_of(operands: Operands, design: Design, splits: int = 1) -> Order | None:
    """The order of a GEMM whose launch divides K into `splits` slices; None for stream-K, whose slices follow from the number
    of rows and of multiprocessors."""
    return order_of_loop(operands.a_dtype, design, group_size=operands.group_size, splits=splits)


def order_of_loop(
    dtype: DType, design: Design, *, group_size: int = 0, splits: int = 1, instruction: str = "wgmma"
) -> Order | None:
    """The same of operands of a dtype whose scales are of `group_size` elements along K, or 0."""
    accumulator = ACCUMULATOR_OF[dtype]
    if accumulator is DType.S32 and not group_size:
        return EXACT
    scheduler = design.tile_scheduler
    if scheduler is TileScheduler.STREAM_K and splits == 1:
        return None
    promoted = PROMOTION if design.accumulation is Accumulation.PROMOTED else 0
    return Order(
        instruction=instruction if design.kernel_schedule.uses_tma else "mma.sync",
        accumulator=accumulator,
        promoted_k=group_size or promoted,
        slices=splits,
        slice_step=(design.slice_step or design.tile_shape_mnk[2]) if splits > 1 else 0,
        joined=_JOINED[scheduler] if splits > 1 else "",
    )
