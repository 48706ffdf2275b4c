"""The rules that say which gated kernels there can be, each with its hardware's reason."""

from collections.abc import Iterator

from gemmill.families.gated_mm.config import (
    GROUP,
    AnyConfig,
    GatedConfig,
    GatedPartsConfig,
)
from gemmill.families.gated_mm.facts import Facts
from gemmill.gemm.fitting import check_partial_sets, check_registers, check_stages
from gemmill.gemm.limits import CONSUMER_GROUPS, SLAB
from gemmill.vocab import Accumulation, Arch, DType, KernelSchedule


def _hopper(c: AnyConfig) -> Iterator[str]:
    """Kernels multiply with WGMMA, which no later architecture has. Those for any layout multiply with `mma.sync`."""
    if c.arch is not Arch.SM90A and (isinstance(c, GatedConfig) or c.arch is not Arch.SM120F):
        yield f"gated kernels are written for sm90a, not for {c.arch}"


def _schedule(c: GatedConfig) -> Iterator[str]:
    """Kernels load with TMA and multiply with WGMMA."""
    if c.design.kernel_schedule not in CONSUMER_GROUPS:
        yield f"gated kernels have no {c.design.kernel_schedule} schedule"


def _accumulation(c: GatedConfig) -> Iterator[str]:
    """Sums of s8 products are integers, those of e4m3 are not."""
    if c.operands.dtype is DType.S8:
        if c.design.accumulation is not Accumulation.EXACT:
            yield f"sums of {c.operands.dtype} are exact, not {c.design.accumulation}"
    elif c.design.accumulation is Accumulation.EXACT:
        yield f"sums of {c.operands.dtype} are not exact: fast or promoted"


def _tile(c: GatedConfig) -> Iterator[str]:
    """WGMMA takes 64 rows; 32 rows of packed weights are 16 results, 16 bytes of codes; TMA's swizzle 128 bytes along
    K."""
    x, y, k = c.design.tile_shape_mnk
    groups = 2 if c.design.kernel_schedule is KernelSchedule.COOPERATIVE else 1
    least = 8 if c.design.swap_ab else 32
    if x % (SLAB * groups) or y % least or not 16 <= y <= 256 or k * c.operands.dtype.bits % 1024:
        yield f"tile {x}x{y}x{k}: rows are a multiple of {SLAB * groups}, columns of {least} from 16 to 256, and K of 128 bytes"


def _groups(c: GatedConfig) -> Iterator[str]:
    """A scale's results are those of one CTA, and a row's of neighbouring threads."""
    if c.design.kernel_schedule in CONSUMER_GROUPS and (facts := Facts(c)).by_group and not facts.has_whole_groups:
        yield (
            f"tile {c.design.tile_shape_mnk} has {facts.tile_columns} results of a row, {facts.store_columns} of them in a box: a scale "
            f"belongs to {facts.result.group} of one tile"
        )
    if c.design.kernel_schedule is KernelSchedule.PINGPONG and Facts(c).by_group and c.design.swap_ab:
        yield "groups that take turns cannot wait for one another's maxima: cooperative or basic"


def _cluster(c: GatedConfig) -> Iterator[str]:
    """CTAs of a pair share the loads of either. A small M leaves nothing worth sharing."""
    if c.design.cluster_shape_mnk not in ((1, 1, 1), (2, 1, 1), (1, 2, 1)) or (
        c.design.swap_ab and c.design.cluster_shape_mnk != (1, 1, 1)
    ):
        yield f"cluster {c.design.cluster_shape_mnk}: pairs along M or N share loads, swapped kernels share none"


def _experts(c: GatedConfig) -> Iterator[str]:
    """A tile along M seldom has one expert's rows alone. A kernel reads packed weights that fill the tensor core's rows
    once.
    """
    if c.operands.by_expert and c.design.cluster_shape_mnk != (1, 1, 1):
        yield f"cluster {c.design.cluster_shape_mnk}: tiles of experts' rows are single CTAs'"


def _fits(c: GatedConfig) -> Iterator[str]:
    """Sums lie in registers of the threads that multiply, and stages in shared memory."""
    if c.design.kernel_schedule in CONSUMER_GROUPS:
        facts = Facts(c)
        yield from check_registers(facts)
        yield from check_stages(facts)
        yield from check_partial_sets(facts)


def _scales(c: GatedConfig) -> Iterator[str]:
    """Each row of weights has a scale, of which a thread has two where weights fill the tensor core's rows. Blocks of gates and of
    ups lie apart in the packed weights."""
    x = c.operands
    if x.group_size and not x.rows_scaled:
        yield f"scales in groups of {x.group_size} of blocks: a plain GEMM makes this product, of packed rows that lie block by block"
    if x.rows_scaled and not c.design.swap_ab:
        yield f"scales in groups of {x.group_size} with weights as columns: a thread would hold one for each, swap_ab has two"
    if (of_results := c.epilogue.result.group) and of_results != (x.group_size or GROUP):
        yield f"results in groups of {of_results} of operands in groups of {x.group_size or GROUP}: both have the same groups"
    if c.operands.group_size and c.design.accumulation is not Accumulation.PROMOTED:
        yield f"scales in groups of {c.operands.group_size} with {c.design.accumulation} sums: they are applied where sums are promoted"


RULES = (_hopper, _schedule, _accumulation, _scales, _tile, _groups, _cluster, _experts, _fits)
UNALIGNED_RULES = (_hopper,)


def _parts(c: GatedPartsConfig) -> Iterator[str]:
    """A plain GEMM has rows in order. It takes packed columns with scales of their own, or block by block with those of blocks."""
    x = c.operands
    if x.by_expert and x.rows_scaled:
        yield f"scales of each row in groups of {x.group_size} of experts: no grouped GEMM of packed columns has them"
    if x.indexed:
        yield "gathered rows of experts: gemmill.grouped_mm_act_quant selects many of them first, and all with scales of blocks"
    if c.epilogue.result.group not in (0, x.group_size or GROUP):
        yield (
            f"results in groups of {c.epilogue.result.group} of operands in groups of {x.group_size or GROUP}: both have the same groups"
        )
    if c.epilogue.activation is not None:
        yield f"activation={c.epilogue.activation}: one kernel has all, None"


PARTS_RULES = (_hopper, _parts)
