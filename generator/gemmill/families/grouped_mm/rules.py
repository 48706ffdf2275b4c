"""Which kernels there can be."""

from collections.abc import Iterator

from gemmill.families.grouped_mm.config import FP4_PAIRS, AnyConfig, GroupedConfig, PackedGroupedConfig, UnpackedConfig
from gemmill.families.grouped_mm.facts import Facts
from gemmill.formats.layout import SIDE
from gemmill.gemm.config import RESULTS_OF
from gemmill.gemm.fitting import FEWEST_STAGES, check_registers, check_stages
from gemmill.gemm.limits import CONSUMER_GROUPS, SLAB
from gemmill.vocab import Accumulation, Arch, DType, KernelSchedule

MOST_WITH_SCALED_ROWS = 128 * 128
"""The most elements of a tile whose weights have scales of each row, as of scaled GEMMs."""


def _hopper(c: AnyConfig) -> Iterator[str]:
    """Kernels multiply with WGMMA, which no later architecture has. Those for any layout and those by warps multiply with `mma.sync`."""
    of_warps = c.by_warps if isinstance(c, PackedGroupedConfig) else not isinstance(c, GroupedConfig)
    if c.arch is not Arch.SM90A and not (of_warps and c.arch is Arch.SM120F):
        yield f"grouped kernels are written for sm90a, not for {c.arch}"


def _results(c: UnpackedConfig) -> Iterator[str]:
    """Results have the dtypes that the next layer reads."""
    if c.out_dtype not in RESULTS_OF[c.operands.dtype]:
        yield f"{c.operands.dtype} gives {' or '.join(RESULTS_OF[c.operands.dtype])}, not {c.out_dtype}"


def _groups(c: UnpackedConfig) -> Iterator[str]:
    """Integer codes have a scale for all of K."""
    if c.group_size and c.operands.dtype is not DType.E4M3:
        yield f"scales in groups come with {DType.E4M3}, not with {c.operands.dtype}"


def _scales(c: GroupedConfig) -> Iterator[str]:
    """Scales along K multiply sums that leave the tensor core in time."""
    wanted = Accumulation.EXACT if c.operands.dtype is DType.S8 else Accumulation.PROMOTED if c.group_size else None
    if wanted is not None and c.design.accumulation is not wanted:
        yield f"accumulation of {c.operands.dtype} with groups of {c.group_size} is {wanted}, not {c.design.accumulation}"
    if wanted is None and c.design.accumulation is Accumulation.EXACT:
        yield f"sums of {c.operands.dtype} are not exact: fast or promoted"
    if not c.operands.scaled and c.design.accumulation is Accumulation.PROMOTED:
        yield f"sums of {c.operands.dtype} are kept in float32: nothing is to be promoted"
    if c.group_size and c.design.kernel_schedule is KernelSchedule.PINGPONG:
        yield f"no {c.design.kernel_schedule} kernel has scales in groups: cooperative is one"


def _schedule(c: GroupedConfig) -> Iterator[str]:
    """Kernels load with TMA and multiply with WGMMA, in schedules that have consumer groups."""
    if c.design.kernel_schedule not in CONSUMER_GROUPS:
        yield f"grouped kernels have no {c.design.kernel_schedule} schedule"


def _tile(c: GroupedConfig) -> Iterator[str]:
    """WGMMA takes 64 rows, and stores columns in steps of 16; TMA's swizzle 128 bytes along K."""
    x, y, k = c.design.tile_shape_mnk
    groups = 2 if c.design.kernel_schedule is KernelSchedule.COOPERATIVE else 1
    if x % (SLAB * groups) or y % 16 or not 16 <= y <= 256 or k * c.operands.dtype.bits % 1024:
        yield (f"tile {x}x{y}x{k}: rows are a multiple of {SLAB * groups}, columns of 16 up to 256, and K of 128 bytes")


def _cluster(c: GroupedConfig) -> Iterator[str]:
    """Tiles along N are always of one expert, tiles along M seldom."""
    if c.design.cluster_shape_mnk not in ((1, 1, 1), (1, 2, 1)) or (
        c.design.swap_ab and c.design.cluster_shape_mnk != (1, 1, 1)
    ):
        yield f"cluster {c.design.cluster_shape_mnk}: two CTAs side by side share rows of A, others share nothing"
    if c.operands.indexed and c.design.cluster_shape_mnk != (1, 1, 1):
        yield f"cluster {c.design.cluster_shape_mnk}: rows that are gathered come by copies of threads, which no CTA shares"


def _fits(c: GroupedConfig) -> Iterator[str]:
    """Sums lie in registers of the threads that multiply, and stages in shared memory."""
    if c.design.kernel_schedule in CONSUMER_GROUPS:
        facts = Facts(c)
        yield from check_registers(facts)
        yield from check_stages(facts)


def _scaled_rows(c: GroupedConfig) -> Iterator[str]:
    """Scales of each row of the weights take a register for each of a thread's columns."""
    x, y, k = c.design.tile_shape_mnk
    if c.operands.rows_scaled and x * y > MOST_WITH_SCALED_ROWS:
        yield f"tile {x}x{y}x{k} has no registers left for scales of each row of the weights: 128x128 has"


RULES = (_hopper, _results, _schedule, _groups, _scales, _tile, _cluster, _fits, _scaled_rows)
UNALIGNED_RULES = (_hopper, _results, _groups)


def _pair(c: PackedGroupedConfig) -> Iterator[str]:
    """A thread makes operands of codes for some pairs only, and the next layer reads bf16."""
    if (c.dtype, c.format) not in FP4_PAIRS:
        known = ", ".join(f"{dtype} x {format}" for dtype, format in FP4_PAIRS)
        yield f"{c.dtype} x {c.format}: packed weights are multiplied in {known}"
    if c.out_dtype is not DType.BF16:
        yield f"results in {c.out_dtype}: those of packed weights are bf16"


def _packed_tile(c: PackedGroupedConfig) -> Iterator[str]:
    """Sums of 64 weights by a tile's rows lie in a warp's registers, or in those of 128 threads."""
    if c.tile_n == SIDE:
        if c.dtype is not DType.BF16 or c.tile_m not in (8, 16):
            yield f"tile of {c.tile_m} x {c.tile_n} of {c.dtype}: warps multiply 8 or 16 rows of bf16 by 64 of weights"
    elif c.tile_n != 2 * SIDE or c.tile_m % 16 or not 16 <= c.tile_m <= 128:
        yield f"tile of {c.tile_m} x {c.tile_n}: groups of 128 threads multiply 16 to 128 rows, in steps of 16, by 128 of weights"


def _packed_memory(c: PackedGroupedConfig) -> Iterator[str]:
    """Stages lie in shared memory."""
    room = c.arch.shared_memory_bytes
    if c.stages < FEWEST_STAGES or c.shared_bytes > room:
        yield f"{c.stages} stages of {c.stage_bytes} bytes: {FEWEST_STAGES} or more must fit in {room} with {c.shared_bytes}"


PACKED_RULES = (_hopper, _pair, _packed_tile, _packed_memory)
