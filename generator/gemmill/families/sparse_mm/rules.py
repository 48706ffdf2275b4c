"""The rules that say which sparse kernels there can be, each with its hardware's reason."""

from collections.abc import Iterator

from gemmill.families.sparse_mm.config import SparseConfig
from gemmill.families.sparse_mm.memory import stage_bytes, stage_room
from gemmill.formats.layout import META_COLUMNS
from gemmill.gemm.config import RESULTS_OF
from gemmill.gemm.limits import SLAB
from gemmill.vocab import Accumulation, Arch, DType, EpilogueKind, KernelSchedule, RasterOrder, TileScheduler

FEWEST_STAGES = 2
MOST_COLUMNS = 256
"""The most columns of one instruction."""
ACCUMULATOR_REGISTERS, AZP_REGISTERS = 208, 24
"""Registers of a consumer thread for sums, and how many of them zero points of tokens take. It can have 240."""
CONSUMER_GROUPS = {KernelSchedule.COOPERATIVE: 2, KernelSchedule.PINGPONG: 1, KernelSchedule.BASIC: 1}
"""Consumer groups that share a tile, by schedule."""


def _hopper(c: SparseConfig) -> Iterator[str]:
    """The kernel multiplies with Hopper's sparse WGMMA."""
    if c.arch is not Arch.SM90A:
        yield f"sparse kernels are written for sm90a, not for {c.arch}"


def _results(c: SparseConfig) -> Iterator[str]:
    """Results have the dtypes that the next layer reads."""
    if c.out_dtype not in RESULTS_OF[c.operand_dtype]:
        yield f"{c.operand_dtype} gives {' or '.join(RESULTS_OF[c.operand_dtype])}, not {c.out_dtype}"
    if c.epilogue.takes_azp and c.operand_dtype is not DType.S8:
        yield f"epilogue {c.epilogue} corrects zero points of {DType.S8}, not of {c.operand_dtype}"


def _accumulation(c: SparseConfig) -> Iterator[str]:
    """Sums of integers are exact. Sums of 16-bit floats are FP32. Those of e4m3 may be promoted."""
    of_8_bits = {DType.S8: (Accumulation.EXACT,), DType.E4M3: (Accumulation.FAST, Accumulation.PROMOTED)}
    known = of_8_bits.get(c.operand_dtype, (Accumulation.FAST,))
    if c.design.accumulation not in known:
        yield f"accumulation of {c.operand_dtype} is {' or '.join(known)}, not {c.design.accumulation}"


def _schedule(c: SparseConfig) -> Iterator[str]:
    """Kernels load with TMA and multiply with WGMMA."""
    if c.design.kernel_schedule not in CONSUMER_GROUPS:
        yield f"sparse kernels have no {c.design.kernel_schedule} schedule"
    scheduler = c.design.tile_scheduler
    if scheduler not in (TileScheduler.PERSISTENT, TileScheduler.STREAM_K):
        yield f"tiles of sparse kernels are {TileScheduler.PERSISTENT} or {TileScheduler.STREAM_K}, not {scheduler}"
    if scheduler is TileScheduler.STREAM_K and c.design.kernel_schedule is not KernelSchedule.COOPERATIVE:
        yield f"{scheduler} runs with the cooperative schedule, whose groups share a tile's sums, not {c.design.kernel_schedule}"


def _tile(c: SparseConfig) -> Iterator[str]:
    """WGMMA takes 64 rows of weights; the epilogue stores columns of 16; metadata lies in blocks of 128 along K."""
    x, y, k = c.design.tile_shape_mnk
    rows = SLAB * CONSUMER_GROUPS.get(c.design.kernel_schedule, 1)
    if x % rows or y % 16 or not 16 <= y <= MOST_COLUMNS or k % META_COLUMNS:
        yield (
            f"tile {x}x{y}x{k}: rows are a multiple of {rows}, columns of 16 up to {MOST_COLUMNS}, and K of {META_COLUMNS}, the columns "
            "of a block of metadata"
        )


def _cluster(c: SparseConfig) -> Iterator[str]:
    """The CTAs of a cluster share tiles along M and N, at most the 8 that every device can run."""
    m, n, k = c.design.cluster_shape_mnk
    if k != 1 or m * n > 8:
        yield f"cluster {m}x{n}x{k}: at most 8 CTAs share tiles, along M and N"


def _registers(c: SparseConfig) -> Iterator[str]:
    """Sums lie in registers, promoted ones twice."""
    if c.design.kernel_schedule not in CONSUMER_GROUPS:
        return
    x, y, _ = c.design.tile_shape_mnk
    times = 2 if c.design.accumulation is Accumulation.PROMOTED else 1
    taken = times * x * y // (128 * CONSUMER_GROUPS[c.design.kernel_schedule])
    room = ACCUMULATOR_REGISTERS - (AZP_REGISTERS if c.epilogue is EpilogueKind.SCALED_AZP_PER_TOKEN else 0)
    if taken > room:
        yield f"sums of a tile take {taken} registers of a thread, there are {room}"


def _memory(c: SparseConfig) -> Iterator[str]:
    """Fewer than two stages leave the tensor core waiting for every load."""
    wanted, stage, room = c.design.stages or FEWEST_STAGES, stage_bytes(c), stage_room(c)
    if wanted < FEWEST_STAGES or room // stage < wanted:
        yield f"{wanted} stages of {stage} bytes: {FEWEST_STAGES} or more must fit in {room}"


def _launch(c: SparseConfig) -> Iterator[str]:
    """The rule rejects settings that the scheduler would ignore, so that no two variants are the same."""
    if c.swizzle not in (1, 2, 4, 8):
        yield f"swizzle {c.swizzle} is not 1, 2, 4 or 8"
    plain = c.raster_order is RasterOrder.HEURISTIC and c.swizzle == 1
    if c.design.kernel_schedule is KernelSchedule.BASIC and not plain:
        yield f"{c.design.kernel_schedule} walks tiles in one order: raster order and swizzle do not apply"


RULES = (_hopper, _results, _accumulation, _schedule, _tile, _cluster, _registers, _memory, _launch)
