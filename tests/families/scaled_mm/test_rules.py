"""Every rule has a config that it alone rejects, with its words; a rule without one fails here."""

import pytest

from gemmill.families.scaled_mm.rules import RULES
from gemmill.families.scaled_mm.rules.memory import stage_bytes
from gemmill.registry import REGISTRY
from gemmill.vocab import (
    Accumulation,
    Arch,
    Backend,
    DType,
    EpilogueKind,
    KernelSchedule,
    MainLoop,
    RasterOrder,
    ScaleGranularity,
    ScaleLayout,
    TileScheduler,
)

FALLBACK = {"kernel_schedule": KernelSchedule.MMA_SYNC}
GROUPED = {
    "a_scale": ScaleGranularity.GROUP,
    "b_scale": ScaleGranularity.BLOCK,
    "group_size": 128,
    "scale_layout": ScaleLayout.STRIDED,
    "accumulation": Accumulation.PROMOTED,
}
COLLECTIVE = GROUPED | {"scale_layout": ScaleLayout.MN_MAJOR}
SPLIT_K = {
    "tile_scheduler": TileScheduler.SPLIT_K,
    "kernel_schedule": KernelSchedule.BASIC,
    "tile_shape_mnk": (64, 16, 256),
    "swap_ab": True,
    "stages": 4,
}
DSL = {"backend": Backend.CUTEDSL}
FEW_ROWS = SPLIT_K | {"tile_scheduler": TileScheduler.PERSISTENT, "main_loop": MainLoop.FEW_ROWS}
GROUPS_OF_FEW_ROWS = SPLIT_K | GROUPED | {"main_loop": MainLoop.FEW_ROWS}
FEW_ROWS_NEEDS = (
    "the kernel of few rows takes swap_ab, a number of stages, and the scheduler persistent, of scales in groups splitk"
)
PARALLEL = DSL | {"tile_scheduler": TileScheduler.SPLIT_K_PARALLEL, "kernel_schedule": KernelSchedule.COOPERATIVE}
RESTARTED = PARALLEL | {"tile_scheduler": TileScheduler.RESTARTED}
SPLIT_K_TAKES = (
    "split_k takes swap_ab, a number of stages, and a cluster of 1x1x1 (its clusters are made of the splits)"
)

SETS = "4 sets of partial sums take turns in groups of 32 where K is not divided and registers hold the sets, but not all sums of a K step"
FINE = DSL | GROUPED | {"group_size": 32, "tile_shape_mnk": (64, 64, 128), "kernel_schedule": KernelSchedule.BASIC}
FEW_ROWS_TAKE = (
    "the kernel of few rows takes a cluster of 1x1x1, and 64 columns of B with basic or 128 with cooperative"
)

OFFERED = "e4m3 x e4m3, s8 x s8, bf16 x bf16, f16 x f16 are"

EXAMPLES = [
    ("operand_dtypes", {"b_dtype": DType.S8}, f"e4m3 x s8 is not offered: {OFFERED}"),
    ("operand_dtypes", DSL | {"a_dtype": DType.BF16, "b_dtype": DType.F16}, f"bf16 x f16 is not offered: {OFFERED}"),
    (
        "out_dtype",
        {"out_dtype": DType.F32, "alignment_d": 4},
        "out f32 of e4m3 operands is not offered: it is bf16 or f16",
    ),
    (
        "out_dtype",
        DSL | {"a_dtype": DType.BF16, "out_dtype": DType.F16},
        "out f16 of bf16 operands is not offered: it is bf16",
    ),
    (
        "operands_of_16_bits",
        DSL | GROUPED | {"a_dtype": DType.BF16, "accumulation": Accumulation.FAST},
        "scales in groups of 128 belong to codes of 8 bits, operands are bf16",
    ),
    (
        "zero_points_are_integers",
        {"epilogue": EpilogueKind.SCALED_AZP},
        "epilogue scaledazp corrects integer zero points, operands are e4m3",
    ),
    (
        "grouped_scales",
        FALLBACK | GROUPED | {"a_scale": ScaleGranularity.BLOCK},
        "scales block of A and block of B in groups of 128: group with block or group is offered, in groups of 128, 64 or 32",
    ),
    (
        "grouped_scales",
        FALLBACK | GROUPED | {"group_size": 16},
        "scales group of A and block of B in groups of 16: group with block or group is offered, in groups of 128, 64 or 32",
    ),
    (
        "fallback_depth",
        FALLBACK | GROUPED | {"group_size": 32},
        "tile depth 64 with groups of 32: the unaligned kernel takes a depth that divides a group",
    ),
    (
        "grouped_scales",
        FALLBACK
        | GROUPED
        | {"a_dtype": DType.S8, "accumulation": Accumulation.EXACT, "epilogue": EpilogueKind.SCALED_AZP_PER_TOKEN},
        "epilogue scaledazppertoken corrects one integer sum, scales in groups of 128 make many",
    ),
    (
        "accumulation_fits_dtype",
        {"accumulation": Accumulation.EXACT},
        "accumulation exact does not fit e4m3: it is fast or promoted",
    ),
    (
        "accumulation_fits_dtype",
        {"a_dtype": DType.S8, "accumulation": Accumulation.FAST},
        "accumulation fast does not fit s8: it is exact",
    ),
    (
        "accumulation_fits_dtype",
        FALLBACK | {"a_dtype": DType.BF16, "accumulation": Accumulation.PROMOTED},
        "accumulation promoted does not fit bf16: it is fast",
    ),
    (
        "accumulation_fits_dtype",
        DSL | GROUPED | {"accumulation": Accumulation.FAST},
        "scales change every 128 along K: sums are promoted there, not fast",
    ),
    (
        "scale_layout",
        COLLECTIVE | {"swap_ab": True},
        "scales mnmajor with cooperative, persistent, swap_ab=True: only CUTLASS's persistent blockwise main loops take "
        "them so, without swap_ab",
    ),
    (
        "blockwise_collective",
        COLLECTIVE | {"a_dtype": DType.S8, "accumulation": Accumulation.EXACT},
        "CUTLASS has no blockwise main loop for s8 with cooperative",
    ),
    (
        "blockwise_collective",
        COLLECTIVE | {"group_size": 64},
        "groups of 64 with tile depth 128: CUTLASS's blockwise main loops take 128 and 128",
    ),
    (
        "blockwise_collective",
        COLLECTIVE | {"tile_shape_mnk": (128, 96, 128)},
        "tile columns 96 are not whole blocks of 128",
    ),
    (
        "blockwise_collective",
        GROUPED | {"group_size": 64},
        "groups of 64 with tile depth 128: CUTLASS's blockwise main loops take 128 and 128",
    ),
    (
        "tile_rows",
        {"tile_shape_mnk": (64, 128, 128)},
        "tile rows 64 are not a multiple of 128, the rows that cooperative multiplies",
    ),
    (
        "tile_rows",
        {"tile_shape_mnk": (96, 128, 128), "kernel_schedule": KernelSchedule.PINGPONG},
        "tile rows 96 are not a multiple of 64, the rows that pingpong multiplies",
    ),
    ("tile_columns", {"tile_shape_mnk": (128, 8, 128)}, "tile columns 8 are not a multiple of 16 up to 256"),
    ("tile_columns", {"tile_shape_mnk": (128, 272, 128)}, "tile columns 272 are not a multiple of 16 up to 256"),
    ("tile_depth", {"tile_shape_mnk": (128, 128, 64)}, "tile depth 64 of e4m3 is not a multiple of 128 bytes"),
    (
        "accumulators_fit",
        {"tile_shape_mnk": (128, 256, 128), "kernel_schedule": KernelSchedule.PINGPONG},
        "tile 128x256 needs 256 accumulator registers a thread of 208",
    ),
    (
        "accumulators_fit",
        {"tile_shape_mnk": (128, 256, 128), "accumulation": Accumulation.PROMOTED},
        "tile 128x256 needs 256 accumulator registers a thread of 208",
    ),
    (
        "accumulators_fit",
        {
            "a_dtype": DType.S8,
            "epilogue": EpilogueKind.SCALED_AZP_PER_TOKEN,
            "tile_shape_mnk": (128, 192, 128),
            "kernel_schedule": KernelSchedule.PINGPONG,
        },
        "tile 128x192 needs 192 accumulator registers a thread of 184",
    ),
    (
        "accumulators_fit",
        {
            "backend": Backend.CUTEDSL,
            "tile_shape_mnk": (128, 208, 128),
            "kernel_schedule": KernelSchedule.PINGPONG,
        },
        "tile 128x208 needs 208 accumulator registers a thread of 192",
    ),
    (
        "accumulators_fit",
        DSL | GROUPED | {"tile_shape_mnk": (128, 208, 128), "b_scale": ScaleGranularity.BLOCK, "swap_ab": True},
        "tile 128x208 needs 208 accumulator registers a thread of 192",
    ),
    ("cluster", {"cluster_shape_mnk": (1, 1, 2)}, "cluster 1x1x2 extends along K, where nothing is shared"),
    ("cluster", {"cluster_shape_mnk": (4, 4, 1)}, "cluster 4x4 has 16 CTAs of 8"),
    ("cluster", FALLBACK | {"cluster_shape_mnk": (2, 1, 1)}, "cluster 2x1 without TMA: there is no multicast to share"),
    (
        "cluster_on_sm120",
        {"arch": Arch.SM120F, "cluster_shape_mnk": (2, 1, 1)},
        "sm120f has no TMA multicast: the cluster is 1x1x1",
    ),
    (
        "schedule_on_blackwell",
        {"arch": Arch.SM100A, "accumulation": Accumulation.PROMOTED},
        "sm100a accumulates FP8 in FP32: there is nothing to promote",
    ),
    (
        "schedule_on_blackwell",
        {"arch": Arch.SM100A, "tile_scheduler": TileScheduler.STREAM_K},
        "cooperative with streamk is a schedule of sm90a",
    ),
    (
        "schedule_on_blackwell",
        {"arch": Arch.SM100A, "kernel_schedule": KernelSchedule.PINGPONG},
        "on sm100a CUTLASS chooses the schedule from tile and cluster: it is written cooperative, not pingpong",
    ),
    ("schedule_on_blackwell", {"arch": Arch.SM120F, "a_dtype": DType.S8}, "s8 is offered on sm90a only, not on sm120f"),
    (
        "scheduler_fits_schedule",
        {"tile_scheduler": TileScheduler.STREAM_K, "kernel_schedule": KernelSchedule.PINGPONG},
        "streamk runs with the cooperative schedule, not pingpong",
    ),
    (
        "scheduler_fits_schedule",
        SPLIT_K | {"kernel_schedule": KernelSchedule.PINGPONG},
        "splitk runs with the cooperative or basic schedule, not pingpong",
    ),
    (
        "scheduler_fits_schedule",
        PARALLEL | {"kernel_schedule": KernelSchedule.PINGPONG},
        "splitkparallel runs with the cooperative schedule, not pingpong",
    ),
    (
        "scheduler_fits_schedule",
        PARALLEL | {"swap_ab": True},
        "splitkparallel stores pairs of columns of D, which are rows of the tile with swap_ab",
    ),
    (
        "dsl_schedule",
        PARALLEL | {"backend": Backend.CUTLASS},
        "splitkparallel is a scheduler of the cutedsl backend",
    ),
    (
        "restarted_sums",
        RESTARTED | {"kernel_schedule": KernelSchedule.PINGPONG, "tile_shape_mnk": (64, 128, 128)},
        "restarted runs with the cooperative or basic schedule, not pingpong",
    ),
    (
        "restarted_sums",
        RESTARTED | {"a_dtype": DType.S8, "accumulation": Accumulation.EXACT},
        "restarted is for sums that depend on their order, these are exact",
    ),
    (
        "accumulators_fit",
        RESTARTED | GROUPED | {"tile_shape_mnk": (128, 192, 128)},
        "tile 128x192 needs 288 accumulator registers a thread of 192",
    ),
    (
        "accumulators_fit",
        RESTARTED | {"tile_shape_mnk": (128, 208, 128)},
        "tile 128x208 needs 208 accumulator registers a thread of 192",
    ),
    ("dsl_schedule", RESTARTED | {"backend": Backend.CUTLASS}, "restarted is a scheduler of the cutedsl backend"),
    (
        "slice_step",
        {"slice_step": 256},
        "slices of whole 256 are dealt out by the cutedsl backend's schedulers splitk, splitkparallel, restarted",
    ),
    (
        "slice_step",
        RESTARTED | {"slice_step": 128},
        "slices of whole 128 are no multiple, from 2 on, of the tile's depth 128",
    ),
    (
        "dsl_partial_sets",
        FINE | {"partial_sets": 3},
        "3 sets of partial sums: a K step's WGMMAs divide into 2 or 4",
    ),
    ("dsl_partial_sets", FINE | {"partial_sets": 4, "group_size": 128}, SETS),
    ("dsl_partial_sets", FINE | {"partial_sets": 4, "tile_shape_mnk": (64, 16, 128)}, SETS),
    ("dsl_partial_sets", FINE | {"partial_sets": 4, "tile_shape_mnk": (64, 128, 128)}, SETS),
    (
        "dsl_partial_sets",
        {"partial_sets": 4},
        "4 sets of partial sums are for the cutedsl backend: others have no sets",
    ),
    (
        "launch_settings",
        PARALLEL | {"splits": 17},
        "splits=17 with the splitkparallel scheduler: split_k takes 1 to 8, split_k_parallel and restarted 1 to 16, the others 1",
    ),
    (
        "launch_settings",
        PARALLEL | {"swizzle": 2},
        "split_k walks tiles in one order: raster order and swizzle do not apply",
    ),
    ("launch_settings", {"swizzle": 3}, "swizzle 3 is not 1, 2, 4 or 8"),
    ("split_k", SPLIT_K | {"swap_ab": False}, SPLIT_K_TAKES),
    ("split_k", SPLIT_K | {"stages": None}, SPLIT_K_TAKES),
    ("split_k", SPLIT_K | {"cluster_shape_mnk": (2, 1, 1)}, SPLIT_K_TAKES),
    (
        "split_k",
        SPLIT_K | {"tile_shape_mnk": (128, 16, 256)},
        "128 columns of B are 2 consumer groups, basic has 1",
    ),
    ("few_rows", FEW_ROWS | {"cluster_shape_mnk": (2, 1, 1)}, FEW_ROWS_TAKE),
    ("few_rows", FEW_ROWS | {"tile_shape_mnk": (128, 16, 256)}, FEW_ROWS_TAKE),
    ("few_rows", FEW_ROWS | {"kernel_schedule": KernelSchedule.PINGPONG}, FEW_ROWS_TAKE),
    (
        "few_rows",
        FEW_ROWS | {"swizzle": 2},
        "the kernel of few rows walks tiles in one order: raster order and swizzle do not apply",
    ),
    (
        "few_rows",
        FEW_ROWS | {"accumulation": Accumulation.PROMOTED},
        "accumulation promoted without scales in groups: split_k promotes sums of few rows",
    ),
    ("few_rows", FEW_ROWS | {"swap_ab": False}, FEW_ROWS_NEEDS),
    ("few_rows", FEW_ROWS | {"stages": None}, FEW_ROWS_NEEDS),
    ("few_rows", FEW_ROWS | {"tile_scheduler": TileScheduler.SPLIT_K}, FEW_ROWS_NEEDS),
    (
        "few_rows",
        FEW_ROWS | {"backend": Backend.CUTEDSL},
        "the kernel of few rows is hand-written for sm90a, in place of cutlass's: cutedsl on sm90a has none",
    ),
    (
        "stages_fit",
        FEW_ROWS | {"stages": 12},
        "12 stages, scales and sums of the kernel of few rows have 252928 bytes of 232448",
    ),
    (
        "stages_fit",
        GROUPS_OF_FEW_ROWS | {"stages": 11},
        "11 stages, scales and sums of the kernel of few rows have 233472 bytes of 232448",
    ),
    (
        "few_rows_in_groups",
        GROUPS_OF_FEW_ROWS | COLLECTIVE,
        "scales mnmajor of e4m3 and of B in a block: the kernel of few rows reads strided ones of e4m3 in blocks",
    ),
    (
        "few_rows_in_groups",
        GROUPS_OF_FEW_ROWS | {"group_size": 64},
        "groups of 64 with a tile of 64 columns of B and depth 256: the kernel of few rows takes groups of 128, up to 128 columns, "
        "and a depth of whole groups",
    ),
    (
        "accumulators_fit",
        GROUPS_OF_FEW_ROWS | {"tile_shape_mnk": (64, 144, 256), "stages": 2},
        "tile 64x144 needs 216 accumulator registers a thread of 208",
    ),
    (
        "launch_settings",
        {"splits": 2},
        "splits=2 with the persistent scheduler: split_k takes 1 to 8, split_k_parallel and restarted 1 to 16, the others 1",
    ),
    (
        "launch_settings",
        SPLIT_K | {"splits": 0},
        "splits=0 with the splitk scheduler: split_k takes 1 to 8, split_k_parallel and restarted 1 to 16, the others 1",
    ),
    (
        "launch_settings",
        SPLIT_K | {"splits": 9},
        "splits=9 with the splitk scheduler: split_k takes 1 to 8, split_k_parallel and restarted 1 to 16, the others 1",
    ),
    (
        "launch_settings",
        SPLIT_K | {"swizzle": 2},
        "split_k walks tiles in one order: raster order and swizzle do not apply",
    ),
    (
        "launch_settings",
        FALLBACK | {"raster_order": RasterOrder.ALONG_M},
        "mmasync walks tiles in one order: raster order and swizzle do not apply",
    ),
    ("tma_alignment", {"alignment_a": 8}, "alignment of a is 8 x e4m3: TMA takes rows of 16 bytes exactly"),
    ("tma_alignment", {"alignment_d": 16}, "alignment of d is 16 x bf16: TMA takes rows of 16 bytes exactly"),
    ("unaligned_fallback", FALLBACK | {"alignment_b": 16}, "mmasync is the unaligned fallback: its alignments are 1"),
    (
        "fallback_has_one_form",
        FALLBACK | {"swap_ab": True},
        "swap_ab=True stages=None with mmasync: it has one operand order and its own pipeline",
    ),
    (
        "fallback_has_one_form",
        FALLBACK | {"stages": 2},
        "swap_ab=False stages=2 with mmasync: it has one operand order and its own pipeline",
    ),
    (
        "fallback_has_one_form",
        FALLBACK | {"accumulation": Accumulation.FAST},
        "mmasync adds in FP32 registers: its accumulation is promoted, not fast",
    ),
    ("stages_fit", DSL | {"stages": 7}, "7 stages of 32784 bytes do not fit in 212480: 6 do"),
    ("stages_fit", DSL | {"stages": 1}, "1 stages: the pipeline needs 2"),
    (
        "stages_fit",
        DSL | GROUPED | {"stages": 6},
        "6 stages of 33312 bytes do not fit in 197632: 5 do",
    ),
    (
        "partial_sums_fit",
        SPLIT_K | {"tile_shape_mnk": (128, 128, 128), "kernel_schedule": KernelSchedule.COOPERATIVE, "stages": 2},
        "tile 128x128x128: partial sums reuse the stages, and 2 of them are too small for a tile",
    ),
    ("stages_fit", {"stages": 7}, "7 stages of 32768 bytes do not fit in 213504: 6 do"),
    (
        "stages_fit",
        {"tile_shape_mnk": (128, 128, 512)},
        "2 stages of 131072 bytes do not fit in 213504: 1 do",
    ),
]

EXAMPLES += [
    ("dsl_arch", DSL | {"arch": Arch.SM100A}, "the cutedsl backend is written for sm90a, not for sm100a"),
    ("dsl_schedule", DSL | FALLBACK, "the cutedsl backend has no mmasync kernel: cutlass has the fallback"),
    (
        "dsl_schedule",
        DSL | {"tile_scheduler": TileScheduler.STREAM_K},
        "the cutedsl backend divides K by split_k, not by streamk",
    ),
    (
        "dsl_multicast",
        DSL | {"tile_shape_mnk": (128, 16, 128), "cluster_shape_mnk": (4, 1, 1)},
        "16 rows of a tile do not divide into slices of 8 for 4 CTAs",
    ),
    (
        "dsl_multicast",
        DSL | {"tile_shape_mnk": (128, 96, 128), "cluster_shape_mnk": (1, 3, 1)},
        "128 rows of a tile do not divide into slices of 8 for 3 CTAs",
    ),
    (
        "dsl_groups",
        DSL | GROUPED | {"kernel_schedule": KernelSchedule.PINGPONG, "tile_shape_mnk": (128, 64, 128)},
        "the cutedsl backend has no pingpong kernel with scales in groups: cooperative is one",
    ),
    (
        "dsl_groups",
        DSL | COLLECTIVE,
        "the cutedsl backend reads scales by their strides, it has no kernel for mnmajor alone",
    ),
    (
        "dsl_groups",
        DSL | GROUPED | {"b_scale": ScaleGranularity.GROUP, "tile_shape_mnk": (256, 128, 128), "stages": None},
        "tile 256x128 has no registers left for scales of each column of B: 128x128 has",
    ),
    (
        "dsl_groups",
        DSL | GROUPED | {"group_size": 64, "tile_shape_mnk": (128, 160, 128)},
        "tile 128x160x128 can touch 3 blocks of 64 columns at columns that differ from tile to tile: "
        "the DSL kernel chooses between 2",
    ),
    (
        "stages_fit",
        DSL | GROUPED | {"tile_shape_mnk": (128, 64, 256), "stages": 5, "group_size": 64},
        "5 stages of 51280 bytes do not fit in 214528: 4 do",
    ),
]


@pytest.mark.parametrize(
    ("rule", "changes", "reason"), EXAMPLES, ids=[f"{rule}-{i}" for i, (rule, _, _) in enumerate(EXAMPLES)]
)
def test_rule_rejects_its_example(make_config, rule: str, changes: dict, reason: str) -> None:
    config = make_config(**changes)
    status = REGISTRY.check(config)
    assert (status.ok, status.rule, status.reason) == (False, rule, reason)
    others = [r.__name__ for r in RULES if r.__name__ != rule and not r(config)]
    assert others == [], "an example shows one rule at work"


def test_every_rule_has_an_example() -> None:
    of_traced = {"visitors"}  # test_visitors.py has its examples, which want traced epilogues
    assert {rule for rule, _, _ in EXAMPLES} | of_traced == {rule.__name__ for rule in RULES}
    assert len({rule.__name__ for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_states_its_hardware_reason(rule) -> None:
    assert rule.__doc__ and rule.__doc__.rstrip().endswith(".")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"a_dtype": DType.S8, "epilogue": EpilogueKind.SCALED_AZP_PER_TOKEN},
        {"out_dtype": DType.F16, "accumulation": Accumulation.PROMOTED},
        {"tile_shape_mnk": (64, 16, 256), "kernel_schedule": KernelSchedule.PINGPONG, "swap_ab": True},
        {"tile_shape_mnk": (128, 256, 128), "cluster_shape_mnk": (2, 4, 1)},
        SPLIT_K,
        SPLIT_K | {"splits": 8},
        GROUPS_OF_FEW_ROWS | {"splits": 8},
        FEW_ROWS,
        FEW_ROWS | {"stages": 11},
        FEW_ROWS
        | {"a_dtype": DType.S8, "kernel_schedule": KernelSchedule.COOPERATIVE, "tile_shape_mnk": (128, 128, 128)},
        {"stages": 6},
        DSL,
        DSL | SPLIT_K,
        PARALLEL | {"splits": 16, "cluster_shape_mnk": (2, 1, 1)},
        DSL | {"stages": 6, "cluster_shape_mnk": (1, 2, 1)},
        DSL | GROUPED,
        DSL | GROUPED | {"swap_ab": True, "stages": None},
        {"arch": Arch.SM100A, "cluster_shape_mnk": (2, 1, 1)},
        FALLBACK,
        FALLBACK | {"a_dtype": DType.BF16},
        FALLBACK | {"a_dtype": DType.F16},
        DSL | {"a_dtype": DType.BF16},
        DSL | SPLIT_K | {"a_dtype": DType.F16, "tile_shape_mnk": (64, 16, 64)},
        FALLBACK | GROUPED,
        FALLBACK | GROUPED | {"a_dtype": DType.S8, "accumulation": Accumulation.EXACT, "group_size": 64},
        DSL | SPLIT_K | GROUPED,
        DSL | GROUPED | {"a_dtype": DType.S8, "accumulation": Accumulation.EXACT},
        COLLECTIVE | {"kernel_schedule": KernelSchedule.PINGPONG, "tile_shape_mnk": (64, 128, 128)},
    ],
)
def test_what_exists_is_accepted(make_config, changes: dict) -> None:
    status = REGISTRY.check(make_config(**changes))
    assert status.ok, status


def test_the_blockwise_tile_that_cutlass_computes_wrong_is_kept_out(make_config) -> None:
    status = REGISTRY.check(make_config(**COLLECTIVE | {"tile_shape_mnk": (256, 128, 128)}))
    assert status.rule == "accumulators_fit"


def test_stage_bytes_count_both_operands(make_config) -> None:
    assert stage_bytes(make_config(tile_shape_mnk=(128, 64, 256))) == (128 + 64) * 256
